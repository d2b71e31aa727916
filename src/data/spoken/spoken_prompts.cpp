#include "choir/data/spoken/spoken_prompts.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/text.hpp"
#include "choir/data/spoken/spoken_numbers.hpp"
#include "src/data/spoken/spoken_process.hpp"
#include "src/data/spoken/spoken_wav.hpp"
#include "src/data/whole_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInstall =
    "apt-get install asterisk-core-sounds-en asterisk-core-sounds-en-wav ('make deps-speech')";

std::string read_transcripts(const std::string& path) {
  if (!fs::exists(path))
    throw DataError(fmt::format("there are no transcripts '{}'", path), kInstall);
  return path.ends_with(".gz") ? run_program({"gzip", "-dc", "--", path}, "gzip")
                               : read_whole_file(path);
}

/// By the text alone, so that equal texts are together whatever is before them.
CorpusSplit split_of(const std::string& text, std::uint64_t seed) {
  const PhiloxKey key = philox_key(seed, "asterisk " + text);
  return uniform01(philox_at(key, 0)[0]) < 0.1 ? CorpusSplit::val : CorpusSplit::train;
}

CorpusEntry entry_of(const std::string& sound, const std::string& text, std::uint64_t seed) {
  const Wav wav = parse_wav(read_whole_file(sound), sound);
  CorpusEntry entry;
  entry.split = split_of(text, seed);
  entry.audio = fs::absolute(sound).lexically_normal().string();
  entry.duration = static_cast<double>(wav.samples.size()) / wav.sample_rate;
  entry.text = text;
  entry.speaker = "Allison";
  return entry;
}

/// Prompts that are transcribed but not installed are counted.
std::vector<CorpusEntry> entries_of(const std::string& transcripts, const PromptOptions& options,
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
    throw DataError(fmt::format("there are no sounds '{}'", options.sounds), kInstall);
  const std::string transcripts = read_transcripts(options.transcripts);
  CorpusReport report;
  if (find_corpus(folder, asked.dump(), report)) return report;
  std::vector<std::string> absent;
  const std::vector<CorpusEntry> entries = entries_of(transcripts, options, absent);
  if (entries.empty())
    throw DataError(
        fmt::format("none of the sounds of '{}' are in '{}'", options.transcripts, options.sounds),
        kInstall);
  report = finish_corpus(folder, asked.dump(), entries);
  if (!absent.empty())
    report.note = fmt::format("{} prompts are transcribed but have no sound file: {}",
                              absent.size(), join(absent, ", "));
  return report;
}

}  // namespace choir
