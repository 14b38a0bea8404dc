#!/bin/sh
# An agent's risky step: ask, wait, act on a yes and on nothing else. Only exit code 0 means "go on".
set -eu

statement='drop table users_old'
printf '%s\n' "$statement" | approvald request db-drop-users-old --class db.destroy --irreversible \
	--as ci --summary 'the table is unused since March' --payload - --wait
psql -c "$statement"
