#!/usr/bin/env bash
# The page of choir report in a real browser: pictures at 1200 and 400 pixels, light and dark, kept
# in BUILD/report-pictures for inspection. No part of the page may be wider than the window, and
# nothing may be loaded from other servers.
. "$(dirname "$0")/../lib/common.sh"
if ! command -v chromium >/dev/null; then
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
check "there is a browser" command -v chromium
pictures=$build/report-pictures
mkdir -p "$pictures"
browse() {  # browse WIDTH THEME ARGUMENT...: 0 is dark, 1 light
  local width=$1 theme=$2
  shift 2
  timeout 60 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" \
    --blink-settings=preferredColorScheme="$theme" --window-size="$width,3600" "$@" 2>/dev/null
}

train 1 one train.max_steps=120 fault.stop_step=47 checkpoint.interval=20
train 1 one train.max_steps=120 checkpoint.interval=20
train 1 two train.max_steps=120 optimizer.learning_rate=1e-3 run.name=slower
run 0 report one --out one.html
expect "the page of a run" 0 "one.html"
run 0 report one two --out both.html
expect "the page of two runs" 0 "both.html"
# Headless windows are at least 500 pixels wide: narrower pages are put in a frame.
echo "<!doctype html><body style=margin:0><iframe src=one.html style='border:0;width:400px;height:3600px'></iframe>" >narrow.html
for page in one both; do
  for theme in 0 1; do
    browse 1200 $theme --screenshot="$pictures/$page-1200-$theme.png" "file://$work/$page.html"
    check "$page at 1200 pixels, theme $theme" test "$(file_bytes "$pictures/$page-1200-$theme.png")" -gt 50000
  done
done
for theme in 0 1; do
  browse 500 $theme --screenshot="$pictures/one-400-$theme.png" "file://$work/narrow.html"
  check "one at 400 pixels, theme $theme" test "$(file_bytes "$pictures/one-400-$theme.png")" -gt 30000
done
check "dark is not light" eval "! cmp -s $pictures/one-1200-0.png $pictures/one-1200-1.png"
# The browser measures the widths itself.
cat >measure.html <<'END'
<!doctype html><body><iframe id=f src=one.html style="border:0;width:400px;height:900px"></iframe><p id=said></p><script>
f.onload = () => { const d = f.contentDocument.documentElement; said.textContent = "wide " + d.scrollWidth + " of " + d.clientWidth }
</script>
END
browse 1200 1 --allow-file-access-from-files --virtual-time-budget=3000 --dump-dom "file://$work/measure.html" >dom
check "nothing is wider than 400 pixels" has dom "wide 400 of 400"

# A dialogue: both players have their sound, play from one button, and the line moves with them.
espeak-ng -v en-us -w user.wav "what is three plus four"
espeak-ng -v en-us+f3 -w agent.wav "the answer is seven, as it always was"
{
  echo '{"dialogue":{"user":"user.wav","agent":"agent.wav","sample_rate":16000,"frame_samples":1280}}'
  for i in {0..30}; do
    echo "{\"frame\":$i,\"text\":\"\",\"speaking\":$([ "$i" -gt 9 ] && echo true || echo false),\"user_db\":-20,\"ms\":1}"
  done
} >talk.jsonl
run 0 report talk.jsonl --out talk.html
expect "the page of a dialogue" 0 "talk.html"
cat >play.html <<'END'
<!doctype html><body><iframe id=f src=talk.html style="border:0;width:1200px;height:900px"></iframe><p id=said></p><script>
f.onload = () => { const d = f.contentDocument; d.getElementById("both0").click(); setTimeout(() => {
  const at = ["user0", "agent0"].map(id => d.getElementById(id).currentTime)
  const moved = d.getElementById("playhead0").getAttribute("transform")
  said.textContent = "both " + at.every(t => t > 0) + " line " + !!moved }, 1500) }
</script>
END
browse 1200 1 --allow-file-access-from-files --autoplay-policy=no-user-gesture-required --virtual-time-budget=4000 --dump-dom \
  "file://$work/play.html" >dom
check "both voices play, and the line moves" has dom "both true line true"
