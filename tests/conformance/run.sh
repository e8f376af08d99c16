#!/usr/bin/env bash
# Runs the client scenarios of the public MCP conformance suite against the daemon, driven through gRPC.
#
#   tests/conformance/run.sh REVISION [--only REGEX] [--auto]
#
#   REVISION      2025-11-25 or 2026-07-28
#   --only REGEX  only scenarios whose name matches (extended regular expression)
#   --auto        only with the era found automatically; by default every scenario without sign-in
#                 runs twice, with the revision pinned and with the era found automatically
#
# Beside the scored scenarios these run, by the same rules: the one about the preservation of schemas, those of the
# extensions of authorization, and with 2025-11-25 those of servers that only know the authorization of 2025-03-26, at
# that revision. Each scenario runs alone. It passes when it exits 0 and has no FAILURE, no WARNING and at least one
# SUCCESS, in every mode it runs in, and when what the suite does not look at holds as well
# (tests/src/conformance.rs). The last line says how many passed; the exit code is 1 while any scenario fails. Reports are
# in target/conformance/.
set -u

usage() {
    sed -n '2,/^set/{/^# \{0,1\}/!d;s///;p}' "$0" >&2
    exit 64
}

revision='' only='.' modes='pinned auto'
while [ $# -gt 0 ]; do
    case $1 in
        --only)
            [ $# -gt 1 ] || usage
            only=$2
            shift
            ;;
        --auto) modes=auto ;;
        -*) usage ;;
        *)
            [ -z "$revision" ] || usage
            revision=$1
            ;;
    esac
    shift
done
[ -n "$revision" ] || usage

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
target=${CARGO_TARGET_DIR:-$root/target}
cargo build --quiet --workspace --bins || exit 1
export MCP_SIDECARD_BIN=${MCP_SIDECARD_BIN:-$target/debug/mcp-sidecard}

{ read -r node && read -r suite; } < <("$target/debug/peers" node22 conformance)
[ -n "${suite:-}" ] || exit 1
export PATH=$node/node_modules/.bin:$PATH
suite=$suite/node_modules/@modelcontextprotocol/conformance
requirements=$suite/requirements/$revision.yaml
if [ ! -f "$requirements" ]; then
    echo "there are no requirements for revision $revision; known: $(ls "$suite/requirements")" >&2
    exit 64
fi
# Servers that only know the authorization of 2025-03-26.
old='auth/2025-03-26-oauth-metadata-backcompat auth/2025-03-26-oauth-endpoint-fallback'
scored=$({
    awk '/^client:/{f=1;next} /^[a-z_]+:/{f=0} f&&/^  - /{print $2}' "$requirements"
    echo json-schema-2020-12-preservation
    printf 'auth/%s\n' client-credentials-jwt client-credentials-basic enterprise-managed-authorization \
        dpop dpop-nonce wif-jwt-bearer
    [ "$revision" != 2025-11-25 ] || printf '%s\n' $old
} | awk '!seen[$0]++' | grep -E -- "$only")
if [ -z "$scored" ]; then
    echo "no scored scenario matches $only" >&2
    exit 64
fi

reports=$target/conformance/$revision
rm -rf "$reports"
mkdir -p "$reports"

# Prints the counts of SUCCESS, WARNING and FAILURE, and the ids of checks that are not in order.
count='
const checks = JSON.parse(require("fs").readFileSync(process.argv[1], "utf8"));
const of = status => checks.filter(check => check.status === status);
const bad = [...of("FAILURE"), ...of("WARNING")].map(check => check.id);
console.log(of("SUCCESS").length, of("WARNING").length, of("FAILURE").length, [...new Set(bad)].join(","));
'

# Runs one scenario in one mode and prints its row; fails unless it passes.
run() {
    local scenario=$1 mode=$2 wire=$revision out code=0 checks success=0 warning=0 failure=0 bad='' problem='' verdict
    out=$reports/$(echo "$scenario" | tr / _).$mode
    case " $old " in
        *" $scenario "*) wire=2025-03-26 ;;
    esac
    CONFORMANCE_MODE=$mode node "$suite/dist/index.js" client --command "'$target/debug/conformance-client'" \
        --scenario "$scenario" --spec-version "$wire" --force -o "$out" >"$out.log" 2>&1 </dev/null || code=$?
    checks=$(find "$out" -name checks.json 2>/dev/null | head -n 1)
    if [ -n "$checks" ]; then
        read -r success warning failure bad < <(node -e "$count" "$checks")
    fi
    if grep -rqs '^ASSERTION FAILED' "$out"; then problem='own assertion'
    elif [ "$failure" != 0 ] || [ "$warning" != 0 ]; then problem=$bad
    elif [ "$code" != 0 ]; then problem="exit code $code"
    elif [ "$success" = 0 ]; then problem='no check was made'
    fi
    [ -z "$problem" ] && verdict=pass || verdict=FAIL
    printf '%-46s %-6s  %s %3s ok  %s\n' "$scenario" "$mode" "$verdict" "$success" "$problem"
    [ -z "$problem" ]
}

passed=0 failed=0
for scenario in $scored; do
    case $scenario in
        auth/*) wanted=${modes%% *} ;;
        *) wanted=$modes ;;
    esac
    ok=1
    for mode in $wanted; do
        run "$scenario" "$mode" || ok=0
    done
    if [ $ok = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
