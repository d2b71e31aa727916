// The lines of a dialogue, and its time line: two waveforms, the text of each voice above it, and
// players that move a line over them.

#include "src/report/dialogue.hpp"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <span>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {
namespace {

namespace fs = std::filesystem;

/// A day of frames of 10 ms; longer dialogues are refused.
constexpr std::size_t kMostFrames = 8'640'000;

/// The path of a file named in a line: as given, or relative to the file of the lines.
std::string found_from(const std::string& path, const std::string& lines) {
  if (fs::exists(path)) return path;
  const fs::path beside = fs::path(lines).parent_path() / path;
  return fs::exists(beside) ? beside.string() : path;
}

void read_head(const nlohmann::json& head, RecordedDialogue& dialogue) {
  dialogue.user = found_from(head.at("user").get<std::string>(), dialogue.path);
  dialogue.agent = found_from(head.at("agent").get<std::string>(), dialogue.path);
  dialogue.sample_rate = head.at("sample_rate").get<int>();
  dialogue.frame_samples = head.at("frame_samples").get<std::int64_t>();
  if (dialogue.sample_rate <= 0 || dialogue.frame_samples <= 0)
    throw DataError("the frame length or sample rate is not positive");
}

void read_frame(const nlohmann::json& line, RecordedDialogue& dialogue) {
  DialogueFrame& frame = dialogue.frames.emplace_back();
  frame.frame = line.at("frame").get<std::int64_t>();
  frame.text = line.at("text").get<std::string>();
  frame.speaking = line.at("speaking").get<bool>();
  frame.heard = line.value("heard", std::string());
  frame.user_db = line.at("user_db").get<double>();
  frame.ms = line.at("ms").get<double>();
  if (frame.frame != std::ssize(dialogue.frames) - 1)
    throw DataError(
        fmt::format("found frame {}, expected {}", frame.frame, dialogue.frames.size() - 1));
  if (dialogue.frames.size() > kMostFrames) throw DataError("too many frames");
}

}  // namespace

std::string dialogue_head_line(const RecordedDialogue& dialogue) {
  nlohmann::ordered_json head;
  head["user"] = dialogue.user;
  head["agent"] = dialogue.agent;
  head["sample_rate"] = dialogue.sample_rate;
  head["frame_samples"] = dialogue.frame_samples;
  return dumped_safely(nlohmann::ordered_json{{"dialogue", head}});
}

std::string dialogue_frame_line(const RecordedDialogue& dialogue, const DialogueFrame& frame) {
  nlohmann::ordered_json line;
  line["frame"] = frame.frame;
  line["seconds"] = static_cast<double>(frame.frame) * dialogue.seconds_per_frame();
  line["text"] = frame.text;
  line["speaking"] = frame.speaking;
  line["heard"] = frame.heard;
  line["user_db"] = frame.user_db;
  line["ms"] = frame.ms;
  return dumped_safely(line);
}

RecordedDialogue read_dialogue(const std::string& path) {
  RecordedDialogue dialogue;
  dialogue.path = path;
  constexpr std::size_t kMostMiB = 1024;
  if (const std::string excess = file_excess(path, kMostMiB); !excess.empty())
    throw DataError(fmt::format("'{}' {}", path, excess), "is it a dialogue?");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError("cannot read '" + path + "'", "is it there?");
  std::string line;
  std::int64_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    try {
      const nlohmann::json json = read_json_line(line, fmt::format("{}:{}", path, number));
      if (number == 1)
        read_head(json.at("dialogue"), dialogue);
      else
        read_frame(json, dialogue);
    } catch (const JsonError&) {
      throw;
    } catch (const std::exception& fault) {
      throw DataError(
          fmt::format("{}:{}: not a line of a dialogue: {}", path, number, plain_cause(fault)),
          "`choir talk RUN a.wav --out b.wav --json > dialogue.jsonl` writes them");
    }
  }
  if (dialogue.frames.empty())
    throw DataError(path + " has no frames of a dialogue",
                    "`choir talk RUN a.wav --out b.wav --json > dialogue.jsonl` writes them");
  return dialogue;
}

std::vector<VoiceTurn> agent_turns(const RecordedDialogue& dialogue) {
  std::vector<VoiceTurn> turns;
  bool speaking = false;
  for (const DialogueFrame& frame : dialogue.frames) {
    if (frame.speaking && !speaking) turns.push_back({.first = frame.frame});
    speaking = frame.speaking;
    if (!speaking) continue;
    turns.back().end = frame.frame + 1;
    turns.back().text += frame.text;
  }
  return turns;
}

std::vector<VoiceTurn> user_turns(const RecordedDialogue& dialogue) {
  std::vector<VoiceTurn> turns;
  const double pause = 1 / dialogue.seconds_per_frame();
  for (const DialogueFrame& frame : dialogue.frames) {
    if (frame.heard.empty()) continue;
    if (turns.empty() || static_cast<double>(frame.frame - turns.back().end) >= pause)
      turns.push_back({.first = frame.frame});
    turns.back().end = frame.frame + 1;
    turns.back().text += frame.heard;
  }
  return turns;
}

namespace {

/// The page contains the sound, four bytes of text for three: 10 minutes of two voices are 50 MB,
/// which a browser still opens at once.
constexpr double kMostSeconds = 600;

constexpr double kPictureWidth = 1160, kPictureLeft = 54, kLane = 76, kTurns = 40, kTime = 22;
constexpr int kWaveColumns = 1000;

using Samples = std::vector<std::int16_t>;

Samples read_all(const std::string& path, int rate) {
  Recording recording = Recording::open({.path = path, .channel = {ChannelChoice::kAverage}}, rate);
  return recording.read(0, recording.samples());
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      out += k <= count ? kDigits[bits >> (18 - 6 * k) & 63u] : '=';
  }
  return out;
}

std::string sound_of(const Samples& samples, int rate) {
  std::string bytes = wav_header(rate, std::ssize(samples));
  for (const std::int16_t sample : samples) {
    const auto bits = static_cast<std::uint16_t>(sample);
    bytes += static_cast<char>(bits & 0xffu);
    bytes += static_cast<char>(bits >> 8);
  }
  return "data:audio/wav;base64," + base64(bytes);
}

int loudest(const Samples& samples) {
  int most = 1;
  for (const std::int16_t sample : samples) most = std::max(most, std::abs(int{sample}));
  return most;
}

/// The waveform as one area: from the lowest to the highest sample of each column.
std::string waveform(const Samples& samples, double from, double to, double middle, double height,
                     int colour) {
  std::string above, below;
  const auto all = static_cast<double>(samples.size());
  for (int column = 0; column < kWaveColumns; ++column) {
    const auto first = static_cast<std::ptrdiff_t>(all * column / kWaveColumns);
    const auto end = static_cast<std::ptrdiff_t>(all * (column + 1) / kWaveColumns);
    if (first >= end) continue;
    const auto [low, high] = std::minmax_element(samples.begin() + first, samples.begin() + end);
    const double x = from + (to - from) * (column + 0.5) / kWaveColumns;
    above += fmt::format("{}{:.1f} {:.1f}", above.empty() ? 'M' : 'L', x, middle - height * *high);
    below.insert(0, fmt::format("L{:.1f} {:.1f}", x, middle - height * *low));
  }
  return fmt::format("<path class=f{} d=\"{}{}Z\"/>", colour, above, below);
}

/// The horizontal position of a time in the picture.
struct TimeLine {
  double seconds = 0;
  double at(double time) const {
    return kPictureLeft + (kPictureWidth - kPictureLeft) * time / seconds;
  }
};

/// The turns of one voice: a lane at `top` over its waveform.
std::string turn_marks(const std::vector<VoiceTurn>& turns, double frame, const TimeLine& line,
                       double top, int colour) {
  std::string out;
  for (const VoiceTurn& turn : turns) {
    const double from = line.at(static_cast<double>(turn.first) * frame);
    const double to = line.at(static_cast<double>(turn.end) * frame);
    const std::string text = escape_html(turn.text);
    out += fmt::format(
        "<g data-time={:.3f} style=cursor:pointer><title>{}</title>"
        "<rect class=f{} fill-opacity=.16 x={:.1f} y={} width={:.1f} height={} rx=3 />"
        "<text x={:.1f} y={} style=fill:var(--ink)>{}</text></g>",
        static_cast<double>(turn.first) * frame, text, colour, from, top, std::max(2.0, to - from),
        kTurns + kLane, from + 4, top + 18, text);
  }
  return out;
}

std::string picture(const RecordedDialogue& dialogue, std::size_t index, const Samples& user,
                    const Samples& agent) {
  const auto rate = static_cast<double>(dialogue.sample_rate);
  const TimeLine line{static_cast<double>(std::max(user.size(), agent.size())) / rate};
  const auto end_of = [&](const Samples& s) {
    return line.at(static_cast<double>(s.size()) / rate);
  };
  const auto heard = user_turns(dialogue);
  const double of_user = heard.empty() ? 0 : kTurns, of_agent = of_user + kLane + kTurns;
  const double height = of_agent + kLane + kTime;
  std::string out = fmt::format(
      "<svg id=timeline{} class=chart viewBox=\"0 0 {} {}\" role=img aria-label=dialogue "
      "data-seconds={:.4f} data-left={} data-width={}>",
      index, kPictureWidth, height, line.seconds, kPictureLeft, kPictureWidth);
  for (const double tick : round_ticks(0, line.seconds, 12))
    out += fmt::format(
        "<path class=g d=\"M{0:.1f} 0V{1}\"/><text x={0:.1f} y={2} class=m>{3} s</text>",
        line.at(tick), height - kTime, height - 6, tick_text(tick, line.seconds / 12));
  const double frame = dialogue.seconds_per_frame();
  out += turn_marks(heard, frame, line, 0, 0);
  out += turn_marks(agent_turns(dialogue), frame, line, of_agent - kTurns, 1);
  out += fmt::format("<text x={0} y={1} class=e>user</text><text x={0} y={2} class=e>agent</text>",
                     kPictureLeft - 8, of_user + kLane / 2 + 4, of_agent + kLane / 2 + 4);
  const double scale = 0.46 * kLane / std::max(loudest(user), loudest(agent));
  out += waveform(user, kPictureLeft, end_of(user), of_user + kLane / 2, scale, 0);
  out += waveform(agent, kPictureLeft, end_of(agent), of_agent + kLane / 2, scale, 1);
  return out + fmt::format("<path id=playhead{} class=a stroke-width=1.5 d=\"M{} 0V{}\"/></svg>",
                           index, kPictureLeft, height - kTime);
}

std::string players(const RecordedDialogue& dialogue, std::size_t index, const Samples& user,
                    const Samples& agent) {
  if (static_cast<double>(std::max(user.size(), agent.size())) >
      kMostSeconds * static_cast<double>(dialogue.sample_rate))
    return fmt::format(
        "<p class=note>The dialogue is longer than {:.0f} minutes, so the page does not contain "
        "the sound. The files are {} and {}.</p>",
        kMostSeconds / 60, escape_html(dialogue.user), escape_html(dialogue.agent));
  const auto player = [&](const char* id, const Samples& samples) {
    return fmt::format(
        "<label style=\"display:inline-flex;align-items:center;gap:8px\">{0}<audio id={0}{1} "
        "controls "
        "preload=auto src=\"{2}\"></audio></label> ",
        id, index, sound_of(samples, dialogue.sample_rate));
  };
  // One button plays both, and the line follows the one that is playing.
  constexpr const char* kScript = R"js(<script>
(n=>{const $=id=>document.getElementById(id+n),voices=[$("user"),$("agent")],line=$("timeline"),
head=$("playhead"),{seconds,left,width}=line.dataset,place=t=>head.setAttribute("transform",
`translate(${(width-left)*t/seconds} 0)`);
const seek=t=>{for(const v of voices)v.currentTime=Math.min(t,v.duration||t);place(t)};
const follow=()=>{const v=voices.find(v=>!v.paused);if(!v)return;place(v.currentTime);
requestAnimationFrame(follow)};
for(const v of voices){v.onplay=follow;v.onseeked=()=>place(v.currentTime)}
$("both").onclick=()=>{const on=voices.some(v=>!v.paused);
if(!on&&voices.every(v=>v.ended||v.currentTime===0))seek(0);
for(const v of voices)on?v.pause():v.play()};
line.onclick=e=>{const g=e.target.closest("[data-time]"),box=line.getBoundingClientRect();
seek(g?+g.dataset.time:
Math.max(0,((e.clientX-box.left)/box.width*width-left)/(width-left)*seconds))}
}))js";
  return "<p style=\"display:flex;flex-wrap:wrap;align-items:center;gap:10px 18px\">" +
         fmt::format("<button id=both{}>play or pause both</button> ", index) +
         player("user", user) + player("agent", agent) + "</p>" +
         fmt::format("{}({})</script>", kScript, index);
}

std::string turns_table(const RecordedDialogue& dialogue) {
  struct Line {
    const char* who;
    VoiceTurn turn;
  };
  std::vector<Line> lines;
  for (VoiceTurn& turn : user_turns(dialogue)) lines.push_back({"user", std::move(turn)});
  for (VoiceTurn& turn : agent_turns(dialogue)) lines.push_back({"agent", std::move(turn)});
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.turn.first < b.turn.first; });
  if (lines.empty()) return "<p class=note>The agent says nothing.</p>";
  std::string rows;
  const double frame = dialogue.seconds_per_frame();
  for (const auto& [who, turn] : lines)
    rows +=
        fmt::format("<tr><td class=n>{:.2f}</td><td class=n>{:.2f}</td><td>{}</td><td>{}</td></tr>",
                    static_cast<double>(turn.first) * frame, static_cast<double>(turn.end) * frame,
                    who, escape_html(turn.text));
  return "<div class=wide><table style=width:auto><tr><th class=n>from, s</th><th class=n>to, "
         "s</th><th></th><th>says</th></tr>" +
         rows + "</table></div>";
}

std::string speed_note(const RecordedDialogue& dialogue) {
  std::vector<double> times;
  for (const DialogueFrame& frame : dialogue.frames) times.push_back(frame.ms);
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return fmt::format(
      "<p class=note>{} frames of {:.0f} ms; a frame took {:.1f} ms (median), at most {:.1f} "
      "ms</p>",
      times.size(), 1e3 * dialogue.seconds_per_frame(), *middle,
      *std::max_element(times.begin(), times.end()));
}

}  // namespace

std::string dialogue_section(const RecordedDialogue& dialogue, std::size_t index) {
  const Samples user = read_all(dialogue.user, dialogue.sample_rate);
  const Samples agent = read_all(dialogue.agent, dialogue.sample_rate);
  const std::string name = std::filesystem::path(dialogue.path).filename().string();
  return section("Dialogue " + name, "<div class=card>" + picture(dialogue, index, user, agent) +
                                         players(dialogue, index, user, agent) +
                                         turns_table(dialogue) + speed_note(dialogue) + "</div>");
}

}  // namespace choir::report
