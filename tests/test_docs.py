"""The documents: code runs, commands parse, lists are those of the code."""

import configparser
import contextlib
import functools
import importlib.util
import io
import os
import pathlib
import re
import shlex

import pytest

from dilojax import _cli_sweep
from dilojax import _cli_tables
from dilojax import _fields
from dilojax import _overrides
from dilojax import build
from dilojax import cli
from dilojax import metrics
from dilojax import workdir

ROOT = pathlib.Path(__file__).parents[1]
DOCS = sorted((ROOT / 'docs').glob('*.md'))
PAGES = [ROOT / 'README.md', *DOCS]
# What a reader can run beside our own commands.
FOREIGN = ('cd', 'source', 'sha256sum', 'tensorboard')


def blocks(path):
  """Returns language, code and first line of every block of a page."""
  text = path.read_text()
  fences = re.finditer(r'^```(\w*)\n(.*?)^```$', text, re.M | re.S)
  return [
    (match[1], match[2], text[: match.start(2)].count('\n')) for match in fences
  ]


def run_page(path, folder):
  """Runs the Python of a page in one namespace, and returns that.

  A block of `text` must be what the Python since the last one printed.
  """
  namespace, printed = {'__name__': '__main__'}, io.StringIO()
  with contextlib.chdir(folder):
    for language, code, line in blocks(path):
      if language == 'python':
        # So that a traceback shows the line of the page.
        program = compile('\n' * line + code, str(path), 'exec')
        with contextlib.redirect_stdout(printed):
          exec(program, namespace)
      elif language == 'text':
        assert printed.getvalue().rstrip() == code.rstrip(), f'{path}:{line}'
        printed = io.StringIO()
      elif language == 'log':
        printed = io.StringIO()
  return namespace


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """Runs a page once, however many tests look at what it made."""

  @functools.cache
  def run(name):
    folder = tmp_path_factory.mktemp(name)
    namespace = run_page(ROOT / 'docs' / f'{name}.md', folder)
    return folder, namespace

  return run


def commands(path):
  """Returns the commands of a page's shell blocks, as lists of words."""
  found = []
  for language, code, _ in blocks(path):
    if language == 'sh':
      lines = code.replace('\\\n', ' ').splitlines()
      split = (shlex.split(line, comments=True) for line in lines)
      found += [words for words in split if words]
  return found


@pytest.mark.parametrize('path', DOCS, ids=lambda path: path.stem)
def test_python_runs(path, page):
  page(path.stem)


def test_readme_runs(tmp_path):
  run_page(ROOT / 'README.md', tmp_path)


def check_commands(path, monkeypatch):
  """Follows the commands of a page, as far as that needs no training."""

  def check(args):
    build.check(_overrides.load(args.config, args.overrides))
    return 0

  for name in ('_train', '_audit'):
    monkeypatch.setattr(cli, name, check)
  for name in ('_plot', '_table'):
    monkeypatch.setattr(_cli_tables, name, lambda args: 0)
  monkeypatch.setattr(cli, '_prepare', lambda args: 0)
  monkeypatch.setattr(_cli_sweep, '_run', lambda args: 0)
  setup = configparser.ConfigParser()
  setup.read(ROOT / 'setup.cfg')
  for words in commands(path):
    while '=' in words[0]:
      words = words[1:]  # A variable for one command.
    match words:
      case ['dilojax', *arguments]:
        assert cli.main(arguments) == 0, words
      case [script, *_] if script.startswith('scripts/'):
        assert os.access(ROOT / script, os.X_OK), words
        help_text = (ROOT / script).read_text()
        for word in words[1:]:
          assert not word.startswith('-') or word in help_text, words
      case ['pip', 'install', requirement]:
        extra = re.fullmatch(r'dilojax\[([\w-]+)\]', requirement)
        assert extra, words
        assert extra[1] in setup['options.extras_require'], words
      case ['python', file]:
        assert (ROOT / file).is_file(), words
      case _:
        assert words[0] in FOREIGN, words


@pytest.mark.parametrize(
  'path',
  # The reader of that one writes the files that its commands name.
  [path for path in PAGES if path.stem != 'adding_a_row'],
  ids=lambda path: path.stem,
)
def test_commands_are_commands(path, monkeypatch):
  monkeypatch.chdir(ROOT)
  check_commands(path, monkeypatch)


@pytest.mark.parametrize('path', PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
  """To files that are there, and to headings as GitHub names them."""

  def anchors(page):
    headings = re.findall(r'^#+ (.*)$', page.read_text(), re.M)
    plain = (re.sub(r'[^\w\- ]', '', heading.lower()) for heading in headings)
    return {heading.replace(' ', '-') for heading in plain}

  prose = re.sub(r'^```.*?^```$', '', path.read_text(), flags=re.M | re.S)
  for target in re.findall(r'\]\(([^)\s]+)\)', prose):
    if re.match(r'https?:', target):
      continue
    file, _, heading = target.partition('#')
    there = path.parent / file if file else path
    assert there.exists(), target
    assert not heading or heading in anchors(there), target


def between(text, name):
  """Returns what a page has between two marks."""
  begin, end = f'<!-- {name}:begin -->\n', f'<!-- {name}:end -->'
  assert text.count(begin) == text.count(end) == 1, name
  return text.partition(begin)[2].partition(end)[0]


def load_fields():
  path = ROOT / 'docs' / 'fields.py'
  spec = importlib.util.spec_from_file_location('docs_fields', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_fields_are_those_of_the_code():
  """Regenerate with `python docs/fields.py`."""
  text, fields = (ROOT / 'docs' / 'configs.md').read_text(), load_fields()
  assert between(text, 'fields') == fields.tables()
  assert between(text, 'configs') == fields.configs()


@pytest.mark.parametrize(
  'path', sorted((ROOT / 'configs').glob('[!_]*.py')), ids=lambda p: p.stem
)
def test_fields_cover_every_config(path, monkeypatch):
  """Every field of a config has its row, and its meaning."""
  monkeypatch.chdir(ROOT)
  config = build.resolve(_overrides.load(path))
  rows = re.findall(
    r'^\| `([\w.]+)` \|', (ROOT / 'docs' / 'configs.md').read_text(), re.M
  )
  for name in _fields.flatten(config):
    name = re.sub(r'^levels\.\w+\.', 'levels.NAME.', name)
    assert name.replace('levels.NAME.outer.', 'outer.') in rows, name


def named(text, heading):
  """Returns the names in the first column of the tables below a heading."""
  section = text.partition(f'\n{heading}\n')[2]
  section = re.split(r'\n#', section)[0]
  return set(re.findall(r'^\| `([^`]+)` \|', section, re.M))


def test_every_metric_is_explained(page):
  folder, namespace = page('launching')
  records = metrics.read(folder / 'runs' / 'bigram' / workdir.METRICS)
  written = {
    re.sub(r'replica_\d+', 'replica_k', name)
    for record in records
    for name in record
  }
  text = (ROOT / 'docs' / 'launching.md').read_text()
  explained = named(text, '### metrics.jsonl')
  # Of other runs: what a classifier measures, and what `skip` counts.
  others = {'train/skipped_steps'} | {
    name for name in explained if name.endswith('/accuracy')
  }
  assert explained - others == written
  assert others <= explained
  assert named(text, '### summary.json') == set(namespace['summary'])


def test_citation_is_that_of_the_file():
  cff = (ROOT / 'CITATION.cff').read_text()
  readme = (ROOT / 'README.md').read_text()
  for name in ('title', 'version', 'license'):
    value = re.search(rf'^{name}: (.*)$', cff, re.M)[1].strip("'")
    assert re.search(rf'{name}\s*= {{{re.escape(value)}}}', readme), name


def test_readme_has_places_for_results():
  text = (ROOT / 'README.md').read_text()
  for name in ('quickstart', 'results', 'benchmarks'):
    between(text, name)


def test_map_is_the_tree():
  """Every module has its line, and every line its module."""
  text = (ROOT / 'README.md').read_text()
  section = text.partition('\n## Map\n')[2].partition('\n## ')[0]
  [tree] = re.findall(r'^```\n(.*?)^```$', section, re.M | re.S)
  folder, listed = '', set()
  for line in tree.splitlines():
    name = line.split()[0]
    if not line.startswith(' '):
      folder = name if name.endswith('/') else ''
      listed.add(name)
    elif folder:
      listed.add(folder + name)
  for name in listed:
    assert (ROOT / name).exists(), name
  package = ROOT / 'dilojax'
  rooms = {
    f'dilojax/{path.name}' if path.is_file() else f'dilojax/{path.name}/'
    for path in package.iterdir()
    if not path.name.startswith('_')
  }
  assert rooms <= listed
