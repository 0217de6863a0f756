#!/usr/bin/env bash
# Every command of the documents has a session, every session its document, and no verb, option or key is unknown.
set -euo pipefail

exec python3 "$(dirname "${BASH_SOURCE[0]}")/known.py"
