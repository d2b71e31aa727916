#include "src/data/corpora/known_corpora.hpp"

#include <filesystem>
#include <limits>
#include <memory>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/corpora/spoken_text.hpp"
#include "src/data/sampling/permutation.hpp"

namespace choir {
namespace {

// Increase it when words or voices change: then the same request makes another corpus.
constexpr int kVersion = 1;
constexpr int kMostDigits = 4;

const std::string& one_of(const std::vector<std::string>& names, std::uint32_t word) {
  return names[static_cast<std::size_t>(between(word, 0, static_cast<int>(names.size()) - 1))];
}

std::string request_of(const char* corpus, const SpokenOptions& options) {
  nlohmann::ordered_json json;
  json["corpus"] = corpus;
  json["version"] = kVersion;
  json["hours"] = options.hours;
  json["seed"] = options.seed;
  return dumped(json);
}

/// Sets everything except text and voice.
SpokenLine vary(PhiloxKey key, std::int64_t i) {
  const PhiloxBlock r = philox_at(key, static_cast<std::uint64_t>(i), 1);
  SpokenLine line;
  line.words_per_minute = between(r[0], 130, 190);
  line.pitch = between(r[1], 30, 70);
  line.snr_db = 15 + 20 * uniform01(r[2]);
  line.id = static_cast<std::uint64_t>(i);
  return line;
}

std::vector<std::string> all_voices() {
  std::vector<std::string> voices = spoken_voices();
  voices.insert(voices.end(), unseen_voices().begin(), unseen_voices().end());
  return voices;
}

}  // namespace

const std::vector<std::string>& spoken_voices() {
  static const std::vector<std::string> voices{"en-us",         "en-us+m3",      "en-us+f2",
                                               "en-gb",         "en-gb+f4",      "en-gb+m7",
                                               "en-gb-x-rp+m1", "en-gb-x-rp+f1", "en-029+m2"};
  return voices;
}

const std::vector<std::string>& unseen_voices() {
  static const std::vector<std::string> voices{"en-us+m4", "en-gb+f3"};
  return voices;
}

namespace {

using Clauses = std::shared_ptr<const std::vector<std::string>>;

Clauses clauses_of(std::string_view book) {
  auto clauses =
      std::make_shared<const std::vector<std::string>>(spoken_clauses(book, ClauseRule{}));
  if (clauses->empty())
    throw DataError("the book has no clauses of 15 to 60 letters of common words",
                    "it may not be English text");
  return clauses;
}

}  // namespace

SpokenPlan spoken_voice_plan(std::string_view book, const SpokenOptions& options) {
  const Clauses clauses = clauses_of(book);
  const PhiloxKey key = philox_key(options.seed, "spoken voice");
  const PhiloxKey held_out = philox_key(options.seed, "spoken voice held out");
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  plan.request = request_of("spoken-voice", options);
  plan.line = [clauses, key, held_out](std::int64_t i) {
    const auto n = clauses->size();
    const auto at = static_cast<std::uint64_t>(i);
    const std::uint64_t clause = Permutation(n, key, at / n)(at % n);
    SpokenPlan::Line line;
    line.spoken.text = (*clauses)[clause];
    line.spoken.voice = spoken_voices().front();
    line.spoken.words_per_minute = 150;
    line.spoken.pitch = 50;
    line.spoken.snr_db = std::numeric_limits<double>::infinity();
    line.spoken.id = at;
    if (between(philox_at(held_out, clause)[0], 0, 9) == 0) line.split = CorpusSplit::val;
    return line;
  };
  return plan;
}

SpokenPlan spoken_book_plan(std::string_view book, const SpokenOptions& options) {
  const Clauses clauses = clauses_of(book);
  const PhiloxKey key = philox_key(options.seed, "spoken book");
  const PhiloxKey held_out = philox_key(options.seed, "spoken book held out");
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  plan.request = request_of("spoken-book", options);
  plan.line = [clauses, key, held_out](std::int64_t i) {
    const auto n = clauses->size();
    const auto at = static_cast<std::uint64_t>(i);
    const std::uint64_t clause = Permutation(n, key, at / n)(at % n);
    const PhiloxBlock r = philox_at(key, at, 0);
    SpokenPlan::Line line;
    line.spoken = vary(key, i);
    line.spoken.text = (*clauses)[clause];
    if (between(philox_at(held_out, clause)[0], 0, 9) == 0)
      line.split = between(r[1], 0, 1) == 0 ? CorpusSplit::val : CorpusSplit::val_voices;
    const bool unseen = line.split == CorpusSplit::val_voices;
    line.spoken.voice = one_of(unseen ? unseen_voices() : spoken_voices(), r[0]);
    return line;
  };
  return plan;
}

SpokenPlan spoken_digits_plan(const SpokenOptions& options) {
  const PhiloxKey key = philox_key(options.seed, "spoken digits");
  const PhiloxKey held_out = philox_key(options.seed, "spoken digits held out");
  SpokenPlan plan;
  plan.hours = options.hours;
  plan.seed = options.seed;
  plan.request = request_of("spoken-digits", options);
  plan.line = [key, held_out, voices = all_voices()](std::int64_t i) {
    const auto at = static_cast<std::uint64_t>(i);
    const PhiloxBlock r = philox_at(key, at, 0), digits = philox_at(key, at, 2);
    const int length = between(r[1], 1, kMostDigits);
    std::vector<std::string> words;
    std::uint64_t number = 1;  // the leading 1 distinguishes "05" from "5"
    for (int d = 0; d < length; ++d) {
      const int digit = between(digits[static_cast<std::size_t>(d)], 0, 9);
      words.push_back(number_words(digit));
      number = number * 10 + static_cast<std::uint64_t>(digit);
    }
    SpokenPlan::Line line;
    line.spoken = vary(key, i);
    line.spoken.text = join(words, " ");
    line.spoken.voice = one_of(voices, r[0]);
    // Three quarters have two digits or more; two fifteenths of them are a tenth of all.
    if (length > 1 && between(philox_at(held_out, number)[0], 0, 14) < 2)
      line.split = CorpusSplit::val;
    return line;
  };
  return plan;
}

std::string kjv_verses() {
  return run_program({"bible", "-f", "Gen1:1-Rev22:21"}, "bible-kjv");
}

std::string kjv_text() {
  std::string text;
  for (const std::string& verse : split(kjv_verses(), '\n')) {
    const std::size_t blank = verse.find(' ');  // "Gen1:1 In the beginning ..."
    if (blank != std::string::npos) text += verse.substr(blank + 1) + '\n';
  }
  return text;
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kInstall =
    "apt-get install asterisk-core-sounds-en asterisk-core-sounds-en-wav ('make deps-speech')";

std::string read_transcripts(const std::string& path) {
  if (!fs::exists(path))
    throw DataError(fmt::format("transcripts not found: '{}'", path), kInstall);
  return path.ends_with(".gz") ? run_program({"gzip", "-dc", "--", path}, "gzip")
                               : read_whole_file(path, kMostListMiB);
}

/// Depends on the text alone, so that equal texts are always in the same part.
CorpusSplit split_of(const std::string& text, std::uint64_t seed) {
  const PhiloxKey key = philox_key(seed, "asterisk " + text);
  return uniform01(philox_at(key, 0)[0]) < 0.1 ? CorpusSplit::val : CorpusSplit::train;
}

CorpusEntry entry_of(const std::string& sound, const std::string& text, std::uint64_t seed) {
  const Wav wav = parse_wav(read_whole_file(sound, kMostListMiB), sound);
  CorpusEntry entry;
  entry.split = split_of(text, seed);
  entry.audio = fs::absolute(sound).lexically_normal().string();
  entry.duration = static_cast<double>(wav.samples.size()) / wav.sample_rate;
  entry.text = text;
  entry.speaker = "Allison";
  return entry;
}

/// Prompts that are transcribed but not installed go to `absent`.
std::vector<CorpusEntry> prompt_entries(const std::string& transcripts,
                                        const PromptOptions& options,
                                        std::vector<std::string>& absent) {
  std::vector<CorpusEntry> entries;
  for (const std::string& line : split(transcripts, '\n')) {
    const std::size_t colon = line.find(':');  // "digits/1: one"; "; comment"
    if (line.empty() || line.front() == ';' || colon == std::string::npos) continue;
    const std::string text = spoken_words(line.substr(colon + 1));
    if (text.empty()) continue;  // tones and silences
    const std::string name = line.substr(0, colon);
    const std::string sound = options.sounds + "/" + name + ".wav";
    if (fs::exists(sound))
      entries.push_back(entry_of(sound, text, options.seed));
    else
      absent.push_back(name);
  }
  return entries;
}

}  // namespace

CorpusReport asterisk_corpus(const std::string& folder, const PromptOptions& options) {
  nlohmann::ordered_json asked;
  asked["corpus"] = "asterisk";
  asked["version"] = 1;
  asked["sounds"] = options.sounds;
  asked["transcripts"] = options.transcripts;
  asked["seed"] = options.seed;
  if (!fs::is_directory(options.sounds))
    throw DataError(fmt::format("no such directory of sounds: '{}'", options.sounds), kInstall);
  const std::string transcripts = read_transcripts(options.transcripts);
  CorpusReport report;
  if (find_corpus(folder, dumped(asked), report)) return report;
  std::vector<std::string> absent;
  const std::vector<CorpusEntry> entries = prompt_entries(transcripts, options, absent);
  if (entries.empty())
    throw DataError(
        fmt::format("none of the sounds of '{}' are in '{}'", options.transcripts, options.sounds),
        kInstall);
  report = finish_corpus(folder, dumped(asked), entries);
  if (!absent.empty())
    report.note = fmt::format("{} prompts are transcribed but have no sound file: {}",
                              absent.size(), join(absent, ", "));
  return report;
}

}  // namespace choir
