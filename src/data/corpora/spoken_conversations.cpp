#include "choir/data/corpora/spoken_conversations.hpp"

#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json text_turn(const char* from, const std::string& value) {
  return {{"from", from}, {"type", "text"}, {"value", value}};
}

std::string conversation_line(const std::string& id, const Json& said, const SpokenTask& task) {
  Json audio;
  audio["from"] = "User";
  audio["type"] = "audio";
  audio["value"] = "../" + said["audio_filepath"].get<std::string>();
  audio["offset"] = said["offset"];
  audio["duration"] = said["duration"];
  Json line;
  line["id"] = id;
  line["conversations"] = {text_turn("User", task.prompt), audio,
                           text_turn("Assistant", task.answer)};
  return dumped(line) + "\n";
}

/// `part_samples`: samples of the file that contains the utterance.
std::string cut_line(const std::string& id, const Json& said, const SpokenTask& task,
                     std::int64_t part_samples) {
  const auto file = said["audio_filepath"].get<std::string>();
  Json recording;
  recording["id"] = fs::path(file).stem().string();
  recording["sources"] = {{{"type", "file"}, {"channels", {0}}, {"source", "../" + file}}};
  recording["sampling_rate"] = kSpokenRate;
  recording["num_samples"] = part_samples;
  recording["duration"] = static_cast<double>(part_samples) / kSpokenRate;
  Json supervision;
  supervision["id"] = id;
  supervision["recording_id"] = recording["id"];
  supervision["start"] = 0.0;
  supervision["duration"] = said["duration"];
  supervision["channel"] = 0;
  supervision["text"] = task.answer;
  supervision["speaker"] = said["speaker"];
  Json cut;
  cut["id"] = id;
  cut["start"] = said["offset"];
  cut["duration"] = said["duration"];
  cut["channel"] = 0;
  cut["supervisions"] = {supervision};
  cut["recording"] = recording;
  cut["custom"] = {{"context", task.prompt}};
  cut["type"] = "MonoCut";
  return dumped(cut) + "\n";
}

}  // namespace

SpokenPlan spoken_plan(std::string_view corpus, int version, const SpokenOptions& options) {
  Json request;
  request["corpus"] = corpus;
  request["version"] = version;
  request["hours"] = options.hours;
  request["seed"] = options.seed;
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  plan.request = dumped(request);
  return plan;
}

SpokenPlan::Line varied_line(PhiloxKey key, std::int64_t i, std::string text, bool held_out) {
  const auto at = static_cast<std::uint64_t>(i);
  const PhiloxBlock voice = philox_at(key, at, 1), manner = philox_at(key, at, 3);
  SpokenPlan::Line line;
  line.spoken.text = std::move(text);
  if (held_out)
    line.split = between(voice[1], 0, 1) == 0 ? CorpusSplit::val : CorpusSplit::val_voices;
  const auto& voices = line.split == CorpusSplit::val_voices ? unseen_voices() : spoken_voices();
  line.spoken.voice =
      voices[static_cast<std::size_t>(between(voice[0], 0, static_cast<int>(voices.size()) - 1))];
  line.spoken.words_per_minute = between(manner[0], 130, 190);
  line.spoken.pitch = between(manner[1], 30, 70);
  line.spoken.snr_db = 15 + 20 * uniform01(manner[2]);
  line.spoken.id = at;
  return line;
}

std::int64_t write_conversations(const std::string& folder, const TasksOf& tasks_of) {
  std::error_code failure;
  fs::create_directories(folder + "/conversations", failure);
  if (failure)
    throw StorageError(
        fmt::format("cannot create '{}/conversations': {}", folder, failure.message()));
  std::int64_t written = 0;
  std::uint64_t number = 0;
  for (const CorpusSplit part : {CorpusSplit::train, CorpusSplit::val, CorpusSplit::val_voices}) {
    const std::string manifest = folder + "/" + name_of(part) + ".json";
    if (!fs::exists(manifest)) continue;
    std::string conversations, cuts;
    for (const std::string& line : split(read_whole_file(manifest, kMostListMiB), '\n')) {
      if (line.empty()) continue;
      const Json said = read_ordered_json_line(line, manifest);
      const auto file = said["audio_filepath"].get<std::string>();
      const std::int64_t samples =
          (static_cast<std::int64_t>(fs::file_size(folder + "/" + file)) - 44) / 2;
      int asked = 0;
      for (const SpokenTask& task : tasks_of(said["text"].get<std::string>(), number)) {
        const std::string id = fmt::format("{}-{:06}-{}", name_of(part), number, asked++);
        conversations += conversation_line(id, said, task);
        cuts += cut_line(id, said, task, samples);
        ++written;
      }
      ++number;
    }
    const std::string stem = folder + "/conversations/" + name_of(part);
    write_whole_file(stem + ".jsonl", conversations);
    write_whole_file(stem + "_cuts.jsonl", cuts);
  }
  return written;
}

std::string text_conversation(const std::string& id, const std::vector<std::string>& asked,
                              const std::string& answer) {
  Json line;
  line["id"] = id;
  for (const std::string& text : asked) line["conversations"].push_back(text_turn("User", text));
  line["conversations"].push_back(text_turn("Assistant", answer));
  return dumped(line) + "\n";
}

}  // namespace choir
