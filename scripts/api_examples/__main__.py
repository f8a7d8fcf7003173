"""Starts a service of its own, asks it as `scenario` says, and prints what was asked and answered."""

import json
import sys

from forgelet.testing import starting
from scripts.api_examples.recording import Recorder
from scripts.api_examples.scenario import play


def main() -> None:
    try:
        with starting.running("--no-edge") as forgelet:
            recorder = Recorder(forgelet.api_url, forgelet.url)
            play(recorder, forgelet.root_token)
    except starting.CannotStart as problem:
        sys.exit(str(problem))
    json.dump(recorder.examples, sys.stdout, indent=1, ensure_ascii=False, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
