"""How the documentation is built: MyST pages whose code runs, no script or font from elsewhere."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
# The commands of the environment that builds come first, for pages that show shell commands.
os.environ["PATH"] = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MARGAUX_DOCS"] = str(HERE)
# The example of a family is a folder that a page imports.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "extending"), os.environ.get("PYTHONPATH")]))
# Kernels draw figures as SVG, and leave no history behind.
IPYTHON = Path(tempfile.mkdtemp(prefix="margaux-docs-ipython-"))
(IPYTHON / "profile_default").mkdir()
(IPYTHON / "profile_default" / "ipython_kernel_config.py").write_text(
    'c.IPKernelApp.matplotlib = "inline"\nc.InlineBackend.figure_formats = {"svg"}\nc.HistoryManager.enabled = False\n'
)
os.environ["IPYTHONDIR"] = str(IPYTHON)
atexit.register(shutil.rmtree, IPYTHON, ignore_errors=True)

import margaux  # noqa: E402

project = "margaux"
author = "the margaux contributors"
copyright = author
version = release = margaux.__version__

extensions = [
    "sphinx.ext.autodoc",
    "myst_nb",
    "sphinx_copybutton",
    "mathml",
    "docstrings",
    "gallery",
    "shell",
]
exclude_patterns = ["_ext"]
nitpicky = True

html_theme = "furo"
html_title = "margaux"
html_static_path = ["_static"]
html_css_files = ["margaux.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
math_eqref_format = "({number})"

# Every page runs from its first cell at every build that reads it: no output is older than its code.
nb_execution_mode = "force"
# A cell that fails is a warning, and warnings stop the build once every page has been tried.
nb_execution_raise_on_error = False
nb_execution_timeout = 600
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_show_tb = True

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
