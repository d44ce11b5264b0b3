"""What `margaux doctor --plan` understands, counts and says."""

import json
import subprocess
import sys

import numpy as np
import pytest

from margaux.commands.plan import lines, parsed, work
from margaux.commands.rates import Rates, measured

RATES = Rates(1e10, 1e8, 1e7, 1e9)


@pytest.mark.parametrize("text", [
    "pln 1e6 x 2e4 rank 20, 64 processes",
    "PLN 1,000,000 x 20_000, rank 20, processes=64",
    "pln 1M x 20k rank: 20 64 processes",
])  # fmt: skip
def test_a_plan_is_said_in_several_ways(text):
    plan = parsed(text)
    assert (plan.family, plan.n, plan.p, plan.rank, plan.processes) == ("pln", 1e6, 2e4, 20, 64)


def test_settings_are_read():
    plan = parsed("soul 1e7 x 6 batch 10,000 latents 2 500 iterations float32")
    assert (plan.family, plan.batch, plan.latents, plan.iterations, plan.single) == ("fit", 10_000, 2, 500, True)
    assert parsed("pln 10 x 9 density 5%").density == 0.05 and parsed("nlme 10 x 9 1 process").processes == 1


@pytest.mark.parametrize(("text", "told"), [
    ("", "'' is no family; a plan begins with one of soul, fit"), ("lme 3 x 4", "'lme' is no family"),
    ("pln rank 3", "no size of a table"), ("pln 10 x 3 rank", "rank has no number"), ("pln 10 x 3 7", "7 has no name"),
    ("pln 10 x 3 rank 5 6", "6 has no name"), ("pln 10 x 3 rang 5", "'rang' in 'pln 10 x 3 rang 5' is not understood"),
    ("soul 3 x 4, 8 processes", "3 units cannot be shared by 8"), ("pln 10 x 4 density 3", "density must lie in"),
    ("pln 10.5 x 4", "units must be a whole number"), ("soul 10 x 4 batch 11", "batch 11 exceeds the 10 units"),
    ("pln 10 x 4 rank 5", "rank 5 exceeds the 4 features"), ("pln 10 x 4 rank processes", "rank in .* has no number"),
    ("pln 10 x 4 -3 rank", "'-' in"), ("soul 10 x 4 3 5 latents", "3 in .* has no name"),
])  # fmt: skip
def test_what_cannot_be_understood_is_said(text, told):
    with pytest.raises(ValueError, match=told):
        parsed(text)


@pytest.mark.parametrize("text", ["soul 1e6 x 6", "soul 1e6 x 6 batch 1e4", "nlme 1e5 x 10", "missing 1e5 x 20", "pln 1e5 x 2e3",
                                  "bnn 6e4 x 784 batch 128"])  # fmt: skip
def test_processes_share_the_work_and_messages_do_not_grow_with_units(text):
    one, four = work(parsed(text)), work(parsed(text + " 4 processes"))
    assert four.specials <= one.specials and four.held < one.held and four.message == one.message
    tenth = work(parsed(text.replace("e6", "e5").replace("e5 ", "e4 ") + " 4 processes"))
    assert tenth.message == four.message
    assert one.seconds(RATES, False) < 1e5 and work(parsed(text + " float32")).held <= one.held


def test_the_message_of_a_sweep_is_the_sums_that_the_equations_of_features_need():
    p, q, k, t = 50, 3, 2, 6
    assert work(parsed("pln 900 x 50 rank 3 covariates 2")).message == 8 * p * (2 + k + 3 + k * q + 2 * q + 2 * t)


def test_what_is_shown():
    shown = dict(lines(parsed("pln 1e6 x 2e4 rank 20, 64 processes"), RATES))
    assert shown["all-reduced an iteration"].endswith("MiB") and "100 iterations" in shown
    assert "the default" in shown["messages"]
    assert "messages" not in dict(lines(parsed("pln 1e6 x 2e4"), RATES))


def test_rates_are_of_this_machine():
    rates = measured(np.dtype(float))
    assert 1e8 < rates.flops < 1e14 and 1e6 < rates.specials < 1e11 and 1e4 < rates.draws < 1e11 and 1e8 < rates.bytes < 1e13


def test_the_command(tmp_path):
    command = [sys.executable, "-m", "margaux", "doctor", "--plan"]
    done = subprocess.run([*command, "soul 1e5 x 6, 2 processes", "--json"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["plan"]["n"] == 1e5 and told["iteration"]["seconds"] > 0 and not told["rates"]["measured"]
    wrong = subprocess.run([*command, "soul 1e5"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "no size of a table" in wrong.stderr.replace("\n", " ")
