#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "choir/core/capped_text.hpp"
#include "choir/core/error.hpp"
#include "choir/core/failure.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"
#include "choir/report/dialogue.hpp"

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

}  // namespace choir::report
