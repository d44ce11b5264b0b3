"""Programs that are found by what they do: in this process, in files, and compiled ahead."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics import compiling, programs
from margaux.numerics.compiling import by_shape, compiled, shapes_of


@compiled
def applied(f, x):
    return f(x)


def count(*calls):
    before = applied.programs()
    for call in calls:
        call()
    return applied.programs() - before


def test_a_function_written_anew_compiles_nothing():
    x = np.arange(3.0)
    assert count(*(lambda: applied(lambda v: jnp.sum(v) * 3.25, x) for _ in range(4))) == 1
    assert count(lambda: applied(lambda v: jnp.sum(v) * 3.5, x)) == 1
    assert float(applied(lambda v: jnp.sum(v) * 3.25, x)) == 9.75 and float(applied(lambda v: jnp.sum(v) * 3.5, x)) == 10.5


class Held:
    """What may change behind the back of a function that reads it."""

    rate = 1.0


def test_what_may_have_changed_since_is_traced_again():
    held = Held()

    def rated():
        return lambda v: jnp.sum(v) * held.rate

    out = []
    for held.rate in (1.0, 2.0, 3.0):
        out.append(float(applied(rated(), np.ones(2))))
    assert out == [2.0, 4.0, 6.0]
    table = {"rate": 1.0}
    out = []
    for rate in (1.0, 2.0):
        table["rate"] = rate
        out.append(float(applied(lambda v: jnp.sum(v) * table["rate"], np.ones(2))))
    assert out == [2.0, 4.0]


def test_numbers_of_other_types_are_other_programs():
    @compiled
    def shown(x, what):
        return x, what

    out = [shown(np.ones(2), what)[1] for what in (1, True, 1.0)]
    assert [type(one) for one in out] == [int, bool, float] and shown.programs() == 3
    assert shown(np.ones(2), 1)[1] is not True and shown.programs() == 3


def test_shapes_and_precisions_are_other_programs():
    @compiled
    def doubled(x):
        return 2 * x

    assert [doubled(np.ones(size, np.float32)).size for size in (2, 3)] == [2, 3]
    with jax.enable_x64(True):
        assert doubled(np.ones(3)).dtype == np.float64
    assert doubled.programs() == 3 and doubled(np.ones(3)).dtype == np.float32


def test_what_is_no_array_comes_back_as_it_was():
    @compiled
    def mixed(x, word):
        return {"x": x + 1, "word": word, "none": None, "pair": (x * 2, 3)}

    for _ in range(2):
        out = mixed(np.ones(2), "mean")
        assert out["word"] == "mean" and out["none"] is None and out["pair"][1] == 3
        np.testing.assert_array_equal(out["pair"][0], 2.0)


def test_arrays_of_all_arguments_but_the_first_are_given_away():
    @compiled(donate="all-except-first")
    def moved(kept, given):
        return kept + given

    kept, given = jnp.ones(4), jnp.ones(4)
    moved(kept, given)
    assert given.is_deleted() and not kept.is_deleted()


def test_inside_another_program_it_is_traced():
    assert float(jax.jit(lambda x: applied(jnp.sum, x))(np.ones(3))) == 3.0
    np.testing.assert_array_equal(jax.grad(lambda x: applied(jnp.sum, x))(np.ones(3)), 1.0)


def test_shapes_are_remembered():
    seen = []

    def f(x):
        seen.append(x)
        return x[:1]

    first, again = shapes_of(f, np.ones(3)), shapes_of(f, np.zeros(3))
    assert first == again and first.shape == (1,) and len(seen) == 1
    shapes_of(f, np.ones(4))
    assert len(seen) == 2
    compiling.forget()
    shapes_of(f, np.ones(3))
    assert len(seen) == 3
    assert by_shape(lambda x, word: (x.shape, word))(np.ones(2), "a") == ((2,), "a")


def test_what_was_compiled_ahead_is_found(monkeypatch):
    @compiled
    def cubed(x, power):
        return x**power

    monkeypatch.setattr(programs, "threads", lambda: 2)
    cubed.ahead(np.ones(3), 3)
    np.testing.assert_array_equal(cubed(np.full(3, 2.0), 3), 8.0)
    assert cubed.programs() == 1
    monkeypatch.setattr(programs, "threads", lambda: 1)
    cubed.ahead(np.ones(4), 3)
    assert cubed.programs() == 1


def test_what_was_asked_for_ahead_is_not_asked_for_again(monkeypatch):
    @compiled
    def scaled(x, power):
        return 2 * x**power

    asked = []
    monkeypatch.setattr(programs, "begin", lambda request: asked.append(request.args[1]))
    for power in (3, 3, 4):
        scaled.ahead(np.ones(3), power)
    scaled(np.ones(3), 5)
    scaled.ahead(np.ones(3), 5)
    assert asked == [3, 4]


def test_small_programs_are_not_optimised(monkeypatch):
    monkeypatch.setitem(compiling.CPU_OPTIONS, "xla_backend_optimization_level", 1)
    compiling._options.cache_clear()

    @compiled(small=True)
    def little(x):
        return jnp.sin(x)

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        find = programs.find
        patch.setattr(programs, "find", lambda request: (seen.append(request.options), find(request))[1])
        np.testing.assert_allclose(little(np.ones(3)), np.sin(1.0), rtol=1e-6)
        applied(jnp.cosh, np.ones(3))
    compiling._options.cache_clear()
    levels = [options["xla_backend_optimization_level"] for options in seen]
    assert levels == [0, 1] and all(1 <= options["xla_cpu_parallel_codegen_split_count"] <= 8 for options in seen)


@pytest.mark.parametrize("beside", [True, False])
def test_beside_others_a_program_is_compiled_whole(beside, tmp_path, monkeypatch):
    @compiled
    def squared(x):
        return x**2 + beside

    asked = []
    inner = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, o=None: (asked.append(o), inner(self, o))[1])
    monkeypatch.setattr(programs, "folder", tmp_path)
    monkeypatch.setattr(programs, "readable", True)
    monkeypatch.setattr(programs, "_unfinished", {object()} if beside else set())
    np.testing.assert_allclose(squared(np.full(3, 2.0)), 4.0 + beside)
    assert asked == [{programs.PARTS: 1} if beside else None]


def test_a_module_is_imported_ahead_where_there_is_a_second_thread(monkeypatch):
    begun = []
    monkeypatch.setattr(programs, "_begun", begun.append)
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    for count in (1, 2):
        monkeypatch.setattr(programs, "threads", lambda count=count: count)
        programs.import_ahead("sched")
        programs.import_ahead("numpy")
    assert [build().__name__ for build in begun] == ["sched"]


@pytest.mark.parametrize(("given", "number"), [("1", 1), ("3", 3), ("", os.cpu_count()), ("many", os.cpu_count())])
def test_how_many_threads(given, number, monkeypatch):
    monkeypatch.setenv("MARGAUX_THREADS", given)
    assert programs.threads() == number


SCRIPT = textwrap.dedent("""
    import jax, numpy as np, jax.numpy as jnp
    traced, compiled_ = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **about: compiled_.append(about) if event.endswith("backend_compile_duration") else None)
    from margaux.numerics.compiling import compiled, keep_compilations
    keep_compilations()
    @compiled
    def solved(x, y):
        traced.append(1)
        return {"z": jnp.linalg.solve(x @ x.T + jnp.eye(3), y), "root": jnp.linalg.cholesky(x @ x.T + jnp.eye(3)), "word": "ok"}
    @compiled
    def called(x):
        return jax.pure_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    out = solved(np.arange(9.0, dtype=np.float32).reshape(3, 3), np.ones(3, np.float32))
    print(len(traced), len(compiled_), out["word"], np.asarray(out["z"]).tolist(), np.asarray(out["root"]).sum())
    print(np.asarray(called(np.ones(2, np.float32))).tolist())
""")


def in_a_process(folder, script=SCRIPT):
    environment = os.environ | {"MARGAUX_CACHE": str(folder), "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    path = folder.parent / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert second == "[2.0, 2.0]"  # a program that calls back to Python cannot be kept, and runs
    traced, compiled_, rest = first.split(" ", 2)
    return int(traced), int(compiled_), rest


def test_a_new_process_neither_traces_nor_compiles(tmp_path):
    folder = tmp_path / "cache"
    traced, compiled_, numbers = in_a_process(folder)
    assert (traced, compiled_) == (1, 1) and len(list(folder.glob("*.program"))) == 1
    assert in_a_process(folder) == (0, 0, numbers)
    # Another function of the same name is another program.
    changed = in_a_process(folder, SCRIPT.replace("+ jnp.eye(3), y)", "+ 2 * jnp.eye(3), y)"))
    assert changed[0] == 1 and changed[2] != numbers
    assert in_a_process(folder) == (0, 0, numbers)
    # Files are read ahead too, where there is a thread for it. A damaged one is no error.
    ahead = SCRIPT.replace("out = solved(", "solved.ahead(np.zeros((3, 3), np.float32), np.ones(3, np.float32))\nout = solved(")
    ahead = ahead.replace(
        "keep_compilations()\n", "keep_compilations()\nimport margaux.numerics.programs as p\np.threads = lambda: 2\n", 1
    )
    assert in_a_process(folder, ahead) == (0, 0, numbers)
    for path in folder.glob("*.program"):
        path.write_bytes(path.read_bytes()[:200])
    damaged = {path: path.read_bytes() for path in folder.glob("*.program")}
    for script in (SCRIPT, ahead):
        for path, content in damaged.items():
            path.write_bytes(content)
        assert in_a_process(folder, script)[::2] == (1, numbers)


def test_another_machine_or_version_has_its_own(tmp_path):
    folder = tmp_path / "cache"
    in_a_process(folder)
    elsewhere = "import margaux.numerics.programs as p\np.surroundings = lambda: 'another'\n" + SCRIPT
    assert in_a_process(folder, elsewhere)[0] == 1 and len(list(folder.glob("*.program"))) == 2


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    assert in_a_process(tmp_path / "cache")[0] == 1
