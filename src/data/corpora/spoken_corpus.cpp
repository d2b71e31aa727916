#include "src/data/corpora/spoken_corpus.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/core/philox.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/waveform.hpp"

namespace choir {
namespace {

constexpr const char* kProgram = "espeak-ng";
constexpr const char* kPackage = "espeak-ng";
constexpr float kLoudest = 0.5f;  // of full scale; leaves headroom for the noise

/// Four normal deviates for four indices (Box-Muller, both of each pair).
std::array<float, 4> normals(PhiloxKey key, std::uint64_t index, std::uint64_t lane) {
  const PhiloxBlock r = philox_at(key, index, lane);
  std::array<float, 4> all{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double u = (r[pair] + 1.0) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    const double angle = 6.283185307179586476925 * uniform01(r[pair + 1]);
    all[pair] = static_cast<float>(radius * std::cos(angle));
    all[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return all;
}

std::vector<float> clean(const SpokenLine& line) {
  std::vector<std::string> argv{kProgram,
                                "-v",
                                line.voice,
                                "-s",
                                std::to_string(line.words_per_minute),
                                "-p",
                                std::to_string(line.pitch),
                                "--stdout"};
  if (!line.final_pause) argv.push_back("-z");
  argv.push_back("--");
  argv.push_back(line.text);
  const Wav wav = parse_wav(run_program(argv, kPackage), "what espeak-ng wrote");
  if (wav.samples.empty())
    throw DataError(
        fmt::format("espeak-ng produced no sound for '{}' with voice {}", line.text, line.voice));
  std::vector<float> speech(wav.samples.begin(), wav.samples.end());
  return resample(speech, wav.sample_rate, kSpokenRate);
}

}  // namespace

std::string espeak_version() {
  return std::string(trim(run_program({kProgram, "--version"}, kPackage)));
}

std::vector<std::int16_t> speak(const SpokenLine& line, std::uint64_t seed) {
  std::vector<float> speech = clean(line);
  const auto frame = static_cast<std::size_t>(line.frame);
  speech.resize((speech.size() + frame - 1) / frame * frame, 0.0f);
  float loudest = 1;
  double power = 0;
  for (const float x : speech) {
    loudest = std::max(loudest, std::abs(x));
    power += static_cast<double>(x) * x;
  }
  const float gain = line.gain > 0 ? static_cast<float>(line.gain) : kLoudest * 32767 / loudest;
  const auto rms = static_cast<float>(std::sqrt(power / static_cast<double>(speech.size())));
  const float noise = gain * rms * static_cast<float>(std::pow(10.0, -line.snr_db / 20));
  const PhiloxKey key = philox_key(seed, "spoken noise");
  std::vector<std::int16_t> samples(speech.size());
  for (std::size_t at = 0; at < speech.size(); at += 4) {
    const auto random = normals(key, line.id, at / 4);
    for (std::size_t i = at; i < std::min(at + 4, speech.size()); ++i) {
      const float value = gain * speech[i] + noise * random[i - at];
      samples[i] = static_cast<std::int16_t>(std::lrint(std::clamp(value, -32768.0f, 32767.0f)));
    }
  }
  return samples;
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array kSplits{CorpusSplit::train, CorpusSplit::val, CorpusSplit::val_voices,
                             CorpusSplit::val_barge_in};
constexpr std::array kNames{"train", "val", "val_voices", "val_barge_in"};
static_assert(kSplits.size() == kCorpusSplits && kNames.size() == kCorpusSplits);
/// Other entries that a folder of a corpus may contain.
constexpr std::array kFolders{"audio", "corpus.json", "conversations", "dialogues", "agent"};
constexpr const char* kReport = "/corpus.json";

CorpusReport::Part& part_of(CorpusReport& report, CorpusSplit split) {
  return report.parts[static_cast<int>(split)];
}
const CorpusReport::Part& part_of(const CorpusReport& report, CorpusSplit split) {
  return report.parts[static_cast<int>(split)];
}

std::string manifest_path(const std::string& folder, CorpusSplit split) {
  return folder + "/" + name_of(split) + ".json";
}

std::string line_of(const CorpusEntry& entry) {
  Json line;
  line["audio_filepath"] = entry.audio;
  line["offset"] = static_cast<double>(entry.offset_ms) / 1000;
  line["duration"] = entry.duration;
  line["text"] = entry.text;
  line["speaker"] = entry.speaker;
  line["lang"] = "en";
  return dumped(line) + "\n";
}

bool read_report(const std::string& folder, const std::string& request, CorpusReport& report) {
  if (!fs::exists(folder + kReport)) return false;
  const Json json =
      read_ordered_json(read_whole_file(folder + kReport, kMostSettingsMiB), folder + kReport);
  if (!json.is_object() || dumped(json.value("request", Json())) != request) return false;
  report.request = request;
  report.made = false;
  for (const CorpusSplit split : kSplits) {
    const Json part = json.value(name_of(split), Json::object());
    part_of(report, split) = {part.value("utterances", std::int64_t{0}),
                              part.value("seconds", 0.0)};
    if (part_of(report, split).utterances > 0 && !fs::exists(manifest_path(folder, split)))
      return false;
  }
  return true;
}

}  // namespace

std::string name_of(CorpusSplit split) {
  return kNames[static_cast<std::size_t>(split)];
}

bool find_corpus(const std::string& folder, const std::string& request, CorpusReport& report) {
  if (read_report(folder, request, report)) return true;
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw StorageError(fmt::format("cannot create '{}': {}", folder, failure.message()));
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = std::find(kFolders.begin(), kFolders.end(), name) != kFolders.end() ||
                      std::any_of(kSplits.begin(), kSplits.end(), [&](CorpusSplit split) {
                        return name == name_of(split) + ".json";
                      });
    if (!ours)
      throw DataError(
          fmt::format("folder '{}' contains '{}', which is not part of a corpus", folder, name),
          "choose an empty or a new folder");
    old.push_back(entry.path());
  }
  // Remove the report first: without it a partial corpus does not count.
  fs::remove(folder + kReport, failure);
  for (const fs::path& path : old) {
    fs::remove_all(path, failure);
    if (failure)
      throw StorageError(fmt::format("cannot remove '{}': {}", path.string(), failure.message()));
  }
  return false;
}

CorpusReport finish_corpus(const std::string& folder, const std::string& request,
                           const std::vector<CorpusEntry>& entries) {
  CorpusReport report;
  report.request = request;
  std::array<std::string, kCorpusSplits> manifests;
  for (const CorpusEntry& entry : entries) {
    CorpusReport::Part& part = part_of(report, entry.split);
    ++part.utterances;
    part.seconds += entry.duration;
    manifests[static_cast<std::size_t>(entry.split)] += line_of(entry);
  }
  Json json;
  json["request"] = parsed_ordered_json(request);
  for (const CorpusSplit split : kSplits) {
    CorpusReport::Part& part = part_of(report, split);
    const std::string& manifest = manifests[static_cast<std::size_t>(split)];
    if (!manifest.empty()) write_whole_file(manifest_path(folder, split), manifest);
    part.seconds = std::round(part.seconds * 1000) / 1000;  // without rounding errors of the sum
    if (split == CorpusSplit::val_barge_in && part.utterances == 0) continue;
    json[name_of(split)] = {{"utterances", part.utterances}, {"seconds", part.seconds}};
  }
  write_whole_file(folder + kReport, dumped(json, 1) + "\n");
  return report;
}

std::string CorpusReport::to_string(const std::string& folder) const {
  std::string text = made ? "" : "The corpus exists already.\n";
  for (const CorpusSplit split : kSplits) {
    const Part& part = part_of(*this, split);
    if (part.utterances > 0)
      text += fmt::format("{:<13}{}, {:.2f} minutes: {}\n", name_of(split),
                          counted(part.utterances, "utterance"), part.seconds / 60,
                          manifest_path(folder, split));
  }
  return note.empty() ? text : text + note + "\n";
}

namespace {

constexpr std::int64_t kSamplesPerMs = kSpokenRate / 1000;
constexpr std::int64_t kHeaderBytes = 44;

std::string part_name(std::int64_t part) {
  return fmt::format("audio/part_{:05}.wav", part);
}

/// Speaks the lines of one part and writes its file; returns the milliseconds of each line.
std::vector<std::int64_t> speak_part(const std::string& folder, const SpokenPlan& plan,
                                     std::int64_t part) {
  std::vector<std::vector<std::int16_t>> spoken(kLinesPerPart);
  std::vector<std::exception_ptr> failures(kLinesPerPart);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < kLinesPerPart; ++i) {
    const auto at = static_cast<std::size_t>(i);
    try {
      spoken[at] = speak(plan.line(part * kLinesPerPart + i).spoken, plan.seed);
    } catch (...) {
      failures[at] = std::current_exception();
    }
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  std::vector<std::int64_t> lengths;
  std::string bytes;
  for (const auto& samples : spoken) {
    lengths.push_back(std::ssize(samples) / kSamplesPerMs);
    bytes.append(reinterpret_cast<const char*>(samples.data()), samples.size() * 2);
  }
  bytes.insert(0, wav_header(kSpokenRate, static_cast<std::int64_t>(bytes.size() / 2)));
  PosixFile file = PosixFile::for_writing(folder + "/" + part_name(part));
  file.write_at(bytes.data(), bytes.size(), 0);
  return lengths;
}

/// Removes the parts after `lines` and truncates the last one.
void cut_parts(const std::string& folder, const std::vector<std::int64_t>& lengths,
               std::int64_t lines) {
  const std::int64_t parts = std::ssize(lengths) / kLinesPerPart;
  const std::int64_t last = (lines - 1) / kLinesPerPart;
  std::error_code failure;
  for (std::int64_t part = last + 1; part < parts && !failure; ++part)
    fs::remove(folder + "/" + part_name(part), failure);
  std::int64_t samples = 0;
  for (std::int64_t i = last * kLinesPerPart; i < lines; ++i)
    samples += lengths[static_cast<std::size_t>(i)] * kSamplesPerMs;
  const std::string path = folder + "/" + part_name(last);
  if (failure) throw StorageError(fmt::format("cannot cut '{}': {}", path, failure.message()));
  std::string whole = wav_header(kSpokenRate, samples);
  whole.resize(kHeaderBytes + static_cast<std::size_t>(samples) * 2);
  PosixFile::for_reading(path).read_at(whole.data() + kHeaderBytes, whole.size() - kHeaderBytes,
                                       kHeaderBytes);
  PosixFile file = PosixFile::for_writing(path);
  file.write_at(whole.data(), whole.size(), 0);
}

std::vector<CorpusEntry> entries_of(const SpokenPlan& plan,
                                    const std::vector<std::int64_t>& lengths, std::int64_t lines) {
  std::vector<CorpusEntry> entries;
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < lines; ++i) {
    if (i % kLinesPerPart == 0) offset = 0;
    const std::int64_t length = lengths[static_cast<std::size_t>(i)];
    const SpokenPlan::Line line = plan.line(i);
    entries.push_back({line.split, part_name(i / kLinesPerPart), offset,
                       static_cast<double>(length) / 1000, line.spoken.text, line.spoken.voice});
    offset += length;
  }
  return entries;
}

/// The number of lines that reach `target`; 0 if those spoken so far do not.
std::int64_t lines_for(const std::vector<std::int64_t>& lengths, std::int64_t target) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    total += lengths[i];
    if (total >= target) return static_cast<std::int64_t>(i) + 1;
  }
  return 0;
}

}  // namespace

CorpusReport speak_corpus(Communicator& world, const std::string& folder, const SpokenPlan& plan,
                          Logger& log) {
  std::string version;
  together(world, [&] { version = espeak_version(); });
  require_equal(world, crc32c(version.data(), version.size()), "the version of espeak-ng");
  CorpusReport report;
  std::int64_t found = 0;
  together(world, [&] {
    if (world.rank() != 0) return;
    found = find_corpus(folder, plan.request, report);
    if (found == 0) fs::create_directories(folder + "/audio");
  });
  world.broadcast(&found, sizeof found, 0);
  if (found != 0) return report;

  const auto target = static_cast<std::int64_t>(plan.hours * 3600 * 1000);
  ProgressLine progress(log, "speaking");
  std::vector<std::int64_t> lengths;
  std::int64_t lines = 0, total = 0;
  for (std::int64_t first = 0; lines == 0; first += world.size()) {
    std::vector<std::int64_t> wave(static_cast<std::size_t>(world.size()) * kLinesPerPart);
    const std::size_t mine = static_cast<std::size_t>(world.rank()) * kLinesPerPart;
    together(world, [&] {
      const auto spoken = speak_part(folder, plan, first + world.rank());
      std::copy(spoken.begin(), spoken.end(), wave.begin() + static_cast<std::ptrdiff_t>(mine));
    });
    world.all_gather(wave.data(), kLinesPerPart, DType::i64);
    for (const std::int64_t length : wave) total += length;
    lengths.insert(lengths.end(), wave.begin(), wave.end());
    lines = lines_for(lengths, target);
    progress.at(std::min(total, target), target);
  }
  together(world, [&] {
    if (world.rank() != 0) return;
    cut_parts(folder, lengths, lines);
    report = finish_corpus(folder, plan.request, entries_of(plan, lengths, lines));
  });
  return report;
}

}  // namespace choir
