"""PPO for language models, taught on models small enough to train while you watch."""
