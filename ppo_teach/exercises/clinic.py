"""The exercises of notebook 10: name the patient, write the check, find the lines (layer 6)."""

import torch

from ..advantages import gae
from ..bugs import BUGS, VITALS, reward_gap
from ..checker import Exercise, Mistake, Task, Verdict, check, says, seeded
from ..checkup import checkup
from ..rewards import place_scores
from ..tensor_ops import masked_whiten

# ---------------------------------------------------------------- 10.1 name the patient

# number in clinic_explorer -> (the fault, a question for who names another one)
WARD = {
    11: ("random_responses", "Whose words are these, if they are so unlikely under the policy and its KL is below 0?"),
    13: ("values_late", "A later token is exchanged and a value moves. What has that value read?"),
    20: ("old_recomputed", "All ratios are 1 in every step, not only in the first. What is the policy compared with?"),
    22: ("score_every_token", "KL, length and score all rise. What does one more token bring in this run?"),
    27: ("reference_is_policy", "The score is the best in the ward and the KL is exactly 0. Who holds this policy?"),
}


def check_patients(answer) -> Verdict:
    """Exercise 10.1: {11: "kl_sign", ...}, an id of BUGS for each patient asked for.

    Taught in: notebooks/10_bug_clinic.ipynb
    """
    say = says("Exercise 10.1")
    if answer is None or answer is ...:
        return say(None, attempted=False)
    if not isinstance(answer, dict):
        return say("not_a_dict", f"You gave a {type(answer).__name__}; a dict from numbers to ids of BUGS is needed.")
    if missing := [number for number in WARD if answer.get(number) in (None, ...)]:
        return say("missing", f"Patient {missing[0]} waits.", "Which number of this patient is out of its range?")
    if unknown := [answer[number] for number in WARD if str(answer[number]) not in BUGS]:
        return say("unknown_id", f"{unknown[0]!r} is no id of BUGS.", "Which ids does `list(BUGS)` show?")
    wrong = [number for number, (bug, _) in WARD.items() if answer[number] != bug]
    if not wrong:
        return say(None, "All five. Only one of them has a score that is too low.", ok=True)
    first, found = wrong[0], len(WARD) - len(wrong)
    claimed, real = BUGS[answer[first]], BUGS[WARD[first][0]]
    why = f"That fault shows in {claimed.number}: {VITALS[claimed.number][0]}."
    if claimed.number == real.number:
        why = f"{claimed.number} fits, but this fault has other curves: {claimed.symptom}"
    return say(f"patient_{first}", f"{found} of {len(WARD)} are right. Patient {first} does not suffer from "
               f"'{claimed.title}'. {why}", WARD[first][1])  # fmt: skip


PATIENTS = Task(
    "patients",
    hints=(
        "Read the number in the sentence below the panels first, then look which curves leave the grey band.",
        "`[bug.id for bug in BUGS.values() if bug.number == 'value_peek']` lists the suspects for one number. Where "
        "several share a number, their `symptom` tells them apart.",
        "Three of the five have a number that only one fault has. For the other two, ask of the KL: below 0, or high?",
    ),
    source=(checkup,),
)

# ---------------------------------------------------------------- 10.2 write the check


def _gap_cases():
    def case(seed, lengths, kl_coef, broken=0.0):
        B, T = len(lengths), max(lengths) + 1
        mask = torch.arange(T) < torch.tensor(lengths).unsqueeze(1)
        numbers = lambda k, *shape: torch.randn(*shape, generator=seeded(seed + k), dtype=torch.float64)
        scores, kl = 2 * numbers(0, B), numbers(1, B, T)
        rewards = torch.where(mask, place_scores(scores, mask) - kl_coef * kl, numbers(2, B, T))
        return dict(rewards=rewards + broken * numbers(3, B, T), scores=scores, kl=kl, kl_coef=kl_coef, mask=mask)

    return {
        "three responses of a healthy step": case(0, (3, 1, 4), 0.1),
        "a broken step": case(10, (4, 2), 0.3, broken=1.0),
        "a large price": case(20, (2, 5, 3, 1), 2.0, broken=0.5),
        "one token": case(30, (1,), 0.5, broken=1.0),
    }


def _gap(paid=lambda r, m: (r * m).sum(1), cost=lambda k, m: (k * m).sum(1), owed=lambda R, c, b, m: R - b * c,
         end=torch.abs):  # fmt: skip
    return lambda r, R, k, b, m: end(paid(r, m) - owed(R, cost(k, m), b, m))


_WRONG = {
    "no_abs": (_gap(end=lambda x: x), "Your gap has a sign: {yours} {place}.",
               "What is the mean of two gaps of +1 and -1, and is the step healthy then?"),
    "squared": (_gap(end=torch.square), "Your gap is squared: {yours} {place}.",
                "In which unit is a distance between two rewards?"),
    "kl_sign": (_gap(owed=lambda R, c, b, m: R + b * c), "Your response is paid for its KL: {yours} {place}.",
                "Should moving away raise or lower what a response is owed?"),
    "kl_forgotten": (_gap(owed=lambda R, c, b, m: R), "The KL has no price in your check: {yours} {place}.",
                     "What do the rewards of a token in the middle consist of?"),
    "kl_coef_forgotten": (_gap(owed=lambda R, c, b, m: R - c), "Each nat costs 1 in your check: {yours} {place}.",
                          "Where does β come in?"),
    "score_forgotten": (_gap(owed=lambda R, c, b, m: -b * c), "The score is not in your check: {yours} {place}.",
                        "Which reward stands at the last token?"),
    "score_priced": (_gap(owed=lambda R, c, b, m: b * (R - c)), "β multiplies the score as well: {yours} {place}.",
                     "Of what is β the price?"),
    "score_every_token": (_gap(owed=lambda R, c, b, m: R * m.sum(1) - b * c),
                          "The score counts once for each token: {yours} {place}.", "How often is a response scored?"),
    "pads_counted": (_gap(paid=lambda r, m: r.sum(1), cost=lambda k, m: k.sum(1)),
                     "Pads are summed in: {yours} {place}.", "What may stand in a padded cell?"),
    "pads_in_rewards": (_gap(paid=lambda r, m: r.sum(1)), "The rewards of the pads are summed in: {yours} {place}.",
                        "Which of the two sums has no mask?"),
    "pads_in_kl": (_gap(cost=lambda k, m: k.sum(1)), "The KL of the pads is summed in: {yours} {place}.",
                   "Which of the two sums has no mask?"),
    "mean_reward": (_gap(paid=lambda r, m: (r * m).sum(1) / m.sum(1)),
                    "Your rewards are averaged, not added up: {yours} {place}.",
                    "A score of 2 comes after three tokens. Is the response owed 2, or less?"),
    "mean_kl": (_gap(cost=lambda k, m: (k * m).sum(1) / m.sum(1)),
                "Your KL is averaged over the tokens: {yours} {place}.", "Who pays for the second nat?"),
    "last_reward_only": (_gap(paid=lambda r, m: r.gather(1, m.sum(1, keepdim=True) - 1).squeeze(1)),
                         "Only the last reward of a response counts: {yours} {place}.",
                         "What do the other tokens pay?"),
    "abs_inside": (_gap(paid=lambda r, m: (r * m).abs().sum(1)), "Each reward loses its sign: {yours} {place}.",
                   "Can a token not cost something?"),
}  # fmt: skip

REWARD_GAP = Exercise(
    number="10.2", name="reward_gap", solution=reward_gap, cases=_gap_cases, shapes="[B]",
    place=lambda case, i: f"for response {i}",
    mistakes={key: Mistake(*wrong) for key, wrong in _WRONG.items()},
    hints=(
        "What a response is paid is a sum over its tokens. What it is owed has two parts, equation 10.1.",
        "Both sums run over the real tokens only: set the padded cells to 0 first, or multiply by the mask.",
        "paid = sum of rewards; owed = score less kl_coef times the summed KL; the result is the distance of the two.",
    ),
    source=(reward_gap,),
    done="It is 0 for a healthy step in every row, pads or not. Four faults of the clinic cannot get past it.",
)  # fmt: skip


def check_reward_gap(fn) -> Verdict:
    """Exercise 10.2: fn(rewards [B, T], scores [B], kl [B, T], kl_coef, mask [B, T]) -> [B].

    Taught in: notebooks/10_bug_clinic.ipynb
    """
    return check(REWARD_GAP, fn)


# ---------------------------------------------------------------- 10.3 find the lines


def broken_step(scores, responses, log_probs, log_probs_ref, values, eos_id, config):
    """From scores to advantages, with four broken lines. Returns: a batch for `checkup`.

    Taught in: notebooks/10_bug_clinic.ipynb
    """
    ends = responses == eos_id  # line 1
    mask = ends.long().cumsum(1) == 0  # line 2
    kl = (log_probs_ref - log_probs) * mask  # line 3
    rewards = place_scores(scores, mask) - config.kl_coef * kl  # line 4
    advantages, _ = gae(rewards, values, config.gamma, config.lam, mask)  # line 5
    advantages = masked_whiten(advantages)  # line 6
    returns = advantages + values  # line 7
    return dict(responses=responses, eos_id=eos_id, mask=mask, log_probs=log_probs, ref_log_probs=log_probs_ref,
                kl=kl, kl_coef=config.kl_coef, rewards=rewards, scores=scores, values=values,
                advantages=advantages, returns=returns)  # fmt: skip


BROKEN = {
    2: "Follow one row with its EOS in column 3: what is the running count of EOS there, and is the cell kept?",
    3: "A token has become likelier than under the reference. Is your k positive for it?",
    6: "Padded cells hold a 0 that nobody earned. Does the mean know?",
    7: "In which order are the advantages whitened and the returns made?",
}
SOUND = {
    1: "Line 1 only compares ids. Where do the wrong cells come from then?",
    4: "Line 4 places the score and takes off the price of `kl`. Is the line wrong, or what it is given?",
    5: "Line 5 passes rewards, values and mask in the right order. Which of its two results is thrown away, and who "
       "would have needed it?",
}  # fmt: skip


def check_broken_lines(answer) -> Verdict:
    """Exercise 10.3: the numbers of the broken lines of `broken_step`, as a list, tuple or set.

    Taught in: notebooks/10_bug_clinic.ipynb
    """
    say = says("Exercise 10.3")
    if answer is None or answer is ...:
        return say(None, attempted=False)
    if not isinstance(answer, (list, tuple, set, frozenset)):
        return say("not_a_list", f"You gave a {type(answer).__name__}; a list of line numbers is needed.")
    if foreign := [line for line in answer if line not in (*BROKEN, *SOUND)]:
        return say("no_such_line", f"{foreign[0]!r} is no line number of `broken_step`; they run from 1 to 7.")
    named = set(answer)
    right, accused = named & set(BROKEN), sorted(named & set(SOUND))
    counted = f"{len(right)} of the four broken lines are named."
    if accused:
        return say(f"line_{accused[0]}_is_sound", f"{counted} Line {accused[0]} is sound.", SOUND[accused[0]])
    if missing := sorted(set(BROKEN) - named):
        return say(f"line_{missing[0]}_missing", counted, BROKEN[missing[0]])
    return say(None, "All four. None of them raises an error, and none changes a shape.", ok=True)


LINES = Task(
    "broken_lines",
    hints=(
        "Each finding of the check-up belongs to one line, or to what an earlier line handed on.",
        "Hold each line against the package: `response_mask`, `kl_estimate`, `shape_rewards`, `shaped_advantages`.",
        "The mask, the KL, the whitening and the returns each have a line. One of them is broken only by its place.",
    ),
    source=(broken_step,),
)

EXERCISES = (PATIENTS, REWARD_GAP, LINES)
