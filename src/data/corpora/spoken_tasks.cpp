#include "choir/data/corpora/spoken_tasks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/text.hpp"
#include "choir/data/corpora/spoken_text.hpp"
#include "src/data/permutation.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr int kTasksVersion = 1;
constexpr std::array kWords{
    "apple",  "bird",   "black", "blue",  "boat",  "book",   "bread",  "bridge", "brown", "chair",
    "child",  "cloud",  "cold",  "dog",   "door",  "dream",  "earth",  "fire",   "fish",  "flower",
    "forest", "glass",  "gold",  "grass", "green", "hand",   "heart",  "home",   "horse", "house",
    "king",   "lake",   "leaf",  "light", "lion",  "milk",   "moon",   "music",  "night", "ocean",
    "paper",  "queen",  "rain",  "river", "road",  "school", "shadow", "silver", "snow",  "stone",
    "street", "summer", "sun",   "table", "tiger", "tree",   "water",  "white",  "wind",  "winter"};
static_assert(kWords.size() == 60);

/// -1 for a word that is no digit.
int digit_of(std::string_view word) {
  for (int digit = 0; digit < 10; ++digit)
    if (number_words(digit) == word) return digit;
  return -1;
}

std::string words_of(PhiloxKey key, std::uint64_t i) {
  const PhiloxBlock shape = philox_at(key, i, 0), drawn = philox_at(key, i, 2);
  const bool digits = between(shape[0], 0, 1) == 0;
  const int length = between(shape[1], 1, digits ? 4 : 3);
  std::vector<std::string> words;
  for (std::size_t w = 0; w < static_cast<std::size_t>(length); ++w)
    words.push_back(digits ? number_words(between(drawn[w], 0, 9))
                           : kWords[static_cast<std::size_t>(
                                 between(drawn[w], 0, static_cast<int>(kWords.size()) - 1))]);
  return join(words, " ");
}

std::string conversation_line(const std::string& id, const nlohmann::ordered_json& said,
                              const SpokenTask& task) {
  nlohmann::ordered_json audio;
  audio["from"] = "User";
  audio["type"] = "audio";
  audio["value"] = "../" + said["audio_filepath"].get<std::string>();
  audio["offset"] = said["offset"];
  audio["duration"] = said["duration"];
  nlohmann::ordered_json line;
  line["id"] = id;
  line["conversations"] = {{{"from", "User"}, {"type", "text"}, {"value", task.prompt}},
                           audio,
                           {{"from", "Assistant"}, {"type", "text"}, {"value", task.answer}}};
  return dumped(line) + "\n";
}

/// `part_samples` of the file that the stretch lies in.
std::string cut_line(const std::string& id, const nlohmann::ordered_json& said,
                     const SpokenTask& task, std::int64_t part_samples) {
  const auto file = said["audio_filepath"].get<std::string>();
  nlohmann::ordered_json recording;
  recording["id"] = fs::path(file).stem().string();
  recording["sources"] = {{{"type", "file"}, {"channels", {0}}, {"source", "../" + file}}};
  recording["sampling_rate"] = kSpokenRate;
  recording["num_samples"] = part_samples;
  recording["duration"] = static_cast<double>(part_samples) / kSpokenRate;
  nlohmann::ordered_json supervision;
  supervision["id"] = id;
  supervision["recording_id"] = recording["id"];
  supervision["start"] = 0.0;
  supervision["duration"] = said["duration"];
  supervision["channel"] = 0;
  supervision["text"] = task.answer;
  supervision["speaker"] = said["speaker"];
  nlohmann::ordered_json cut;
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

std::span<const char* const> common_words() {
  return kWords;
}

std::vector<SpokenTask> spoken_tasks_of(std::string_view text) {
  const std::vector<std::string> words = split(text, ' ');
  if (words.empty()) return {};
  std::vector<std::string> letters;
  for (const char c : words.front()) letters.push_back(std::string(1, c));
  std::vector<SpokenTask> tasks{{"Repeat:", std::string(text)},
                                {"Reverse the words:", join({words.rbegin(), words.rend()}, " ")},
                                {"Say the last word:", words.back()},
                                {"How many words?", number_words(std::ssize(words))},
                                {"Spell the first word:", join(letters, " ")}};
  int sum = 0;
  for (const std::string& word : words) {
    const int digit = digit_of(word);
    if (digit < 0) return tasks;
    sum += digit;
  }
  tasks.push_back({"Add the numbers:", number_words(sum)});
  return tasks;
}

SpokenPlan spoken_tasks_plan(const SpokenOptions& options) {
  const PhiloxKey key = philox_key(options.seed, "spoken tasks");
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  nlohmann::ordered_json request;
  request["corpus"] = "spoken-tasks";
  request["version"] = kTasksVersion;
  request["hours"] = options.hours;
  request["seed"] = options.seed;
  plan.request = dumped(request);
  plan.line = [key, seed = options.seed](std::int64_t i) {
    const auto at = static_cast<std::uint64_t>(i);
    const PhiloxBlock voice = philox_at(key, at, 1), manner = philox_at(key, at, 3);
    SpokenPlan::Line line;
    line.spoken.text = words_of(key, at);
    // By the words alone, so that equal texts are all held out or none.
    const PhiloxKey held_out = philox_key(seed, "spoken tasks held out " + line.spoken.text);
    if (between(philox_at(held_out, 0)[0], 0, 9) == 0)
      line.split = between(voice[1], 0, 1) == 0 ? CorpusSplit::val : CorpusSplit::val_voices;
    const auto& voices = line.split == CorpusSplit::val_voices ? unseen_voices() : spoken_voices();
    line.spoken.voice =
        voices[static_cast<std::size_t>(between(voice[0], 0, static_cast<int>(voices.size()) - 1))];
    line.spoken.words_per_minute = between(manner[0], 130, 190);
    line.spoken.pitch = between(manner[1], 30, 70);
    line.spoken.snr_db = 15 + 20 * uniform01(manner[2]);
    line.spoken.id = at;
    return line;
  };
  return plan;
}

std::int64_t write_spoken_tasks(const std::string& folder, std::uint64_t seed, int prompts) {
  const PhiloxKey key = philox_key(seed, "spoken tasks asked");
  std::error_code failure;
  fs::create_directories(folder + "/conversations", failure);
  if (failure)
    throw StorageError(
        fmt::format("cannot create '{}/conversations': {}", folder, failure.message()));
  std::int64_t written = 0, number = 0;
  for (const CorpusSplit part : {CorpusSplit::train, CorpusSplit::val, CorpusSplit::val_voices}) {
    const std::string manifest = folder + "/" + name_of(part) + ".json";
    if (!fs::exists(manifest)) continue;
    std::string conversations, cuts;
    for (const std::string& line : split(read_whole_file(manifest), '\n')) {
      if (line.empty()) continue;
      const nlohmann::ordered_json said = parsed_ordered_json(line);
      const auto tasks = spoken_tasks_of(said["text"].get<std::string>());
      const auto file = said["audio_filepath"].get<std::string>();
      const std::int64_t samples =
          (static_cast<std::int64_t>(fs::file_size(folder + "/" + file)) - 44) / 2;
      const Permutation order(tasks.size(), key, static_cast<std::uint64_t>(number));
      const auto asked = std::min<std::size_t>(tasks.size(), static_cast<std::size_t>(prompts));
      for (std::size_t p = 0; p < asked; ++p) {
        const SpokenTask& task = tasks[order(p)];
        const std::string id = fmt::format("{}-{:06}-{}", name_of(part), number, p);
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

}  // namespace choir
