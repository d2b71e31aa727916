#include "src/data/audio/folder_manifest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_array_reader.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/flac_checksum.hpp"
#include "src/data/audio/recording_list.hpp"
#include "src/data/sampling/buckets.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNamed = 4;
constexpr const char* kToMeasure = "measure";  // in place of the duration of a recording

std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

/// Bytes of a text file without a byte-order mark; refuses what is not UTF-8.
std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(fmt::format("cannot read '{}'", path.string()));
  std::ostringstream bytes;
  bytes << file.rdbuf();
  std::string text = std::move(bytes).str();
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  if (!is_utf8(text))
    throw DataError(fmt::format("'{}' is not UTF-8", path.string()),
                    "convert it, for example with iconv -f LATIN1 -t UTF-8");
  return text;
}

/// The words of all lines, with single blanks between them.
std::string joined_lines(const std::string& text) {
  std::istringstream words(text);
  std::string joined, word;
  while (words >> word) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

/// The texts of a folder and its recordings, by the path without its extension.
struct Found {
  std::map<std::string, fs::path> recordings;
  std::map<std::string, std::string> texts;
};

void add_text(Found& found, const fs::path& stem, std::string text, const fs::path& file) {
  if (!found.texts.emplace(stem.string(), std::move(text)).second)
    throw DataError(fmt::format("'{}' has a second text, in '{}'", stem.string(), file.string()),
                    "keep one text for each recording");
}

void add_texts_of_list(Found& found, const fs::path& file) {
  std::istringstream lines(text_of(file));
  for (std::string line; std::getline(lines, line);) {
    const std::string words = joined_lines(line);
    if (words.empty()) continue;
    const std::size_t blank = words.find(' ');
    add_text(found, file.parent_path() / words.substr(0, blank),
             blank == std::string::npos ? "" : words.substr(blank + 1), file);
  }
}

/// With `no_texts` the recordings stand under their whole names, because no text has to find them.
Found files_below(const std::vector<std::string>& folders, bool no_texts) {
  Found found;
  for (const std::string& folder : folders) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) {
      const fs::path stem = file.parent_path() / file.stem();
      if (file.string().ends_with(".trans.txt"))
        add_texts_of_list(found, file);
      else if (extension_of(file) == ".txt")
        add_text(found, stem, joined_lines(text_of(file)), file);
      else if (is_sound_file(file.string()) &&
               !found.recordings.emplace((no_texts ? file : stem).string(), file).second)
        throw DataError(
            fmt::format(
                "'{}' and '{}' differ only in their extensions, so that a text would belong "
                "to both",
                found.recordings[stem.string()].string(), file.string()),
            "keep one of them, or give them different names");
    }
  }
  if (found.recordings.empty()) {
    const std::string advice = advice_on_recordings(folders.front());
    throw DataError(fmt::format("no recording is below {}", join(folders, ", ")),
                    advice.empty() ? "recordings are files named .wav, .flac, .ogg, .opus, .mp3, "
                                     ".aiff, .au, .w64 or .caf"
                                   : advice);
  }
  return found;
}

/// The advice to name the table below these folders that has their texts; "" if there is none.
std::string list_beside(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (const std::string advice = advice_on_recordings(folder);
        advice.find("listed in a table") != std::string::npos)
      return advice;
  return {};
}

/// The path of a recording as a manifest in the folder `here` names it.
std::string named_from(const fs::path& here, const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path relative = absolute.lexically_relative(here);
  const bool below = !relative.empty() && *relative.begin() != "..";
  return below ? relative.string() : absolute.string();
}

/// The length of a recording in seconds, and the reason if its file was cut off.
struct Length {
  double seconds = 0;
  int channels = 1;
  std::string shortfall;  ///< AudioDecoder::shortfall()
  bool cut_off = false;   ///< AudioDecoder::cut_off()
};

/// Decodes all samples. Throws AudioError for damage, which headers do not show.
void decode(AudioDecoder& audio, const std::string& path) {
  constexpr std::int64_t kAtOnce = 1 << 20;
  for (std::int64_t first = 0; first < audio.frames(); first += kAtOnce)
    audio.read(first, std::min(kAtOnce, audio.frames() - first), {.value = 0}, audio.rate());
  if (file_of_recording(path) != path) return;  // of an archive
  if (const std::string fault = flac_checksum_fault(path); !fault.empty())
    throw AudioError(AudioFault::unreadable, fmt::format("'{}' {}", path, fault),
                     "encode it again from its source; `flac -t FILE` tests it, too");
}

/// The frames of an encoder, counted in milliseconds of sound.
constexpr SpeechFrames kUsualFrames{.hop = 10, .stages = kMostHalvings};

/// A cut of Lhotse as a line of NeMo. Throws AudioError.
nlohmann::ordered_json nemo_line_of_cut(const nlohmann::ordered_json& cut, const std::string& path,
                                        const std::string& place) {
  AudioManifest manifest;
  add_cut(cut, {.folder = fs::path(path).parent_path().string(), .place = place}, false, manifest);
  const AudioEntry& entry = manifest.entries.front();
  if (!entry.member.empty())
    throw AudioError(AudioFault::refused, "its recording is in a tar",
                     "`choir prepare audio` reads it");
  const auto packed = read_ordered_json(entry.line(entry.duration), place);
  nlohmann::ordered_json line;
  line["audio_filepath"] = fs::absolute(entry.path).string();
  line["offset"] = entry.offset;  // the cut may be a part of its recording
  line["duration"] = entry.duration;
  line["text"] = packed["text"];
  for (const char* key : {"id", "lang", "speaker"})
    if (packed.contains(key)) line[key] = packed[key];
  if (entry.channel >= 0) line["channel"] = entry.channel;
  return line;
}

/// Collects the lines of a manifest in the folder `here`.
class ManifestLines {
 public:
  ManifestLines(fs::path here, const FolderManifestOptions& options, FolderManifestSummary& summary)
      : here_(std::move(here)), options_(options), summary_(summary) {}

  /// Adds a line of NeMo whose "audio_filepath" is absolute or relative to the working directory,
  /// and whose "text" is a string. `place` is that of the line, or the file itself, for messages. A
  /// line whose recording cannot be read is counted and left out; see refuse_bad().
  void add(nlohmann::ordered_json line, const std::string& place) {
    try {
      add_readable(std::move(line), place);
    } catch (const AudioError& error) {
      if (options_.untexted && error.fault() == AudioFault::missing_file) {
        ++summary_.without_file;
        return;
      }
      add_bad(place, error);
    }
  }
  /// Counts a line or recording that is left out with --on-bad skip.
  void add_bad(const std::string& place, const AudioError& error) {
    summary_.bad.add(place, error);
    all_bad_.add(place, error);
  }
  /// Counts a line that is refused also with --on-bad skip.
  void add_unfit(const std::string& place, const std::string& cause, const std::string& hint) {
    unfit_.add(place, cause, hint);
    all_bad_.add(place, cause, hint);
  }
  /// Refuses all bad lines together, unless they are left out.
  void refuse_bad() const {
    const BadList& refused = options_.skip_bad ? unfit_ : all_bad_;
    if (refused.count() > 0)
      refused.refuse(all_bad_.count() + summary_.recordings, "recording",
                     refused.count() > unfit_.count() ? kSkipsBad : "");
  }
  void add_readable(nlohmann::ordered_json line, const std::string& place) {
    const fs::path sound = line["audio_filepath"].get<std::string>();
    line["audio_filepath"] = named_from(here_, sound);
    const std::string text = line["text"].get<std::string>();
    summary_.parted += options_.form.without_punctuation && parts_numbers(text) ? 1 : 0;
    line["text"] = options_.no_texts ? "" : options_.form.of(text);
    if (line["duration"] == kToMeasure) {
      line["duration"] = length_of(sound).seconds;
    } else {
      check_times(number_of(line, "offset", 0), number_of(line, "duration", 1));
      small_of(line, "channel", 0);
      set_duration(line, sound);
    }
    if (line.contains(kListedChannel)) {
      // A list of channels may be older than files that have one of them each.
      if (length_of(sound).channels > 1) line["channel"] = line[kListedChannel];
      line.erase(kListedChannel);
    }
    if (sound == measured_) judge_end(line, sound);
    const double seconds = line["duration"].is_number() ? line["duration"].get<double>() : 0;
    // The channels are known if the recording was opened for its duration.
    if (sound == measured_ && length_.channels > 1 && !line.contains("channel") &&
        summary_.without_channel++ == 0)
      summary_.first_without_channel =
          fmt::format("{} ({} channels)", sound.string(), length_.channels);
    count_text(line["text"].get<std::string>(), seconds, sound);
    summary_.seconds += seconds;
    ++summary_.recordings;
    lines_.push_back({.text = dumped(line) + "\n",
                      .group = options_.held_out > 0 ? group_of(line, sound, place) : "",
                      .seconds = seconds});
  }
  /// The lines of the manifest; `held`: those that are held out of it.
  std::string text(bool held) const {
    std::string text;
    for (const Line& line : lines_)
      if (held_.contains(line.group) == held) text += line.text;
    return text;
  }
  /// Chooses whole groups until the share of lines is nearest to that of the options. The order of
  /// groups is that of the hashes of their names, so that it depends on nothing else.
  void hold_out() {
    std::map<std::string, std::int64_t> sizes;
    for (const Line& line : lines_) ++sizes[line.group];
    if (sizes.size() < 2)
      throw DataError(fmt::format("--held-out: all {} belong to one {}",
                                  counted(std::ssize(lines_), "line"), options_.held_out_by),
                      options_.held_out_by == "recording"
                          ? "name a manifest of other recordings in data.val"
                          : "divide by another property, for example --held-out-by recording");
    std::vector<std::pair<std::uint64_t, std::string>> order;
    for (const auto& [group, size] : sizes) order.emplace_back(fnv1a(group), group);
    std::sort(order.begin(), order.end());
    const double wanted = options_.held_out * static_cast<double>(lines_.size());
    std::int64_t taken = 0;
    for (const auto& [hash, group] : order) {
      if (static_cast<double>(taken) + static_cast<double>(sizes[group]) / 2 > wanted) continue;
      held_.insert(group);
      taken += sizes[group];
    }
    const auto size_of = [&](const auto& of) { return sizes[of.second]; };
    if (held_.empty()) held_.insert(std::ranges::min_element(order, {}, size_of)->second);
    for (const Line& line : lines_)
      if (held_.contains(line.group)) ++summary_.held, summary_.seconds_held += line.seconds;
    summary_.groups_held = std::ssize(held_);
  }
  /// The length of a file; segments of one file usually follow one another.
  const Length& length_of(const fs::path& sound) {
    if (sound == measured_) return length_;
    AudioDecoder audio = AudioDecoder::from_file(sound.string());
    length_ = {audio.seconds(), audio.channels(), audio.shortfall(), audio.cut_off()};
    if (!opened_.contains(sound.string())) check(audio, sound.string());
    opened_.insert(sound.string());
    measured_ = sound;
    return length_;
  }

 private:
  struct Line {
    std::string text, group;
    double seconds = 0;
  };

  /// Decodes a recording, unless those before it already last as long as the options want.
  void check(AudioDecoder& audio, const std::string& path) {
    if (summary_.seconds_decoded >= 3600 * options_.checked_hours) {
      ++summary_.opened;
      return;
    }
    decode(audio, path);
    ++summary_.decoded;
    summary_.seconds_decoded += audio.seconds();
  }

  /// Refuses a whole recording with a text whose end is missing: the text would not be that of its
  /// sound. Other files that lack samples are counted.
  void judge_end(const nlohmann::ordered_json& line, const fs::path& sound) {
    if (length_.shortfall.empty()) return;
    const bool part = line.contains("offset") && line["offset"].is_number();
    if (length_.cut_off && !part && !line["text"].get_ref<const std::string&>().empty())
      throw AudioError(AudioFault::unreadable,
                       fmt::format("'{}' {}", sound.string(), length_.shortfall), kDamageRemedy);
    if (lacking_.insert(sound.string()).second && summary_.cut_off++ == 0)
      summary_.first_cut_off = fmt::format("{} {}", sound.string(), length_.shortfall);
  }

  void count_text(const std::string& text, double seconds, const fs::path& sound) {
    if (text.empty()) return;
    ++summary_.with_words;
    std::vector<std::int32_t> characters;
    append_code_points(characters, text);
    const std::int64_t frames = ctc_frames(characters);  // if each character is a label
    const auto milliseconds = static_cast<std::int64_t>(1000 * seconds);
    for (int halvings = 1; halvings <= kMostHalvings; ++halvings)
      summary_.crowded[static_cast<std::size_t>(halvings)] +=
          frames > kUsualFrames.after(halvings, milliseconds);
    if (summary_.first_crowded.empty() && summary_.crowded.back() == 1)
      summary_.first_crowded =
          fmt::format("{}: {}, {}", sound.string(), counted(std::ssize(characters), "character"),
                      counted(kUsualFrames.frames(milliseconds), "frame"));
  }

  /// The name of the lines that are held out together. That of a recording is without the folders
  /// above its own, so that data that were moved are divided as before.
  std::string group_of(const nlohmann::ordered_json& line, const fs::path& sound,
                       const std::string& place) const {
    const fs::path folder = fs::absolute(sound).lexically_normal().parent_path();
    if (options_.held_out_by == "folder") return folder.string();
    if (options_.held_out_by == "recording") return (folder.filename() / sound.filename()).string();
    for (const char* key : {"speaker", "speaker_id", "client_id"})
      if (line.contains(key))
        return line[key].is_string() ? line[key].get<std::string>() : dumped(line[key]);
    throw DataError(fmt::format("{}: it names no speaker, by whom --held-out-by divides", place),
                    "speakers are in \"speaker\" of manifests, utt2spk of Kaldi, and client_id of "
                    "Common Voice; if each has a folder: --held-out-by folder");
  }

  /// Measures a duration that is missing, and one of a whole file that is there to be measured:
  /// other programs estimate those of compressed sound. Checks that a segment lies in its
  /// recording.
  void set_duration(nlohmann::ordered_json& line, const fs::path& sound) {
    const bool missing = !line.contains("duration") || line["duration"].is_null();
    const bool part = line.contains("offset") && line["offset"].is_number();
    const double offset = part ? line["offset"].get<double>() : 0;
    std::error_code ignored;
    const bool there = fs::is_regular_file(file_of_recording(sound.string()), ignored);
    if (!missing && (!line["duration"].is_number() || (!there && line.contains("shard_id"))))
      return;
    const Length& is = length_of(sound);
    if (missing) {
      line["duration"] = is.seconds - offset;
      ++summary_.measured;
      if (!(is.seconds > offset)) refuse_segment(sound, is.seconds, offset, 0);
      return;
    }
    const double said = line["duration"].get<double>();
    const double excess = offset + said - is.seconds;
    if (part && (excess > kDurationTolerance || offset >= is.seconds))
      refuse_segment(sound, is.seconds, offset, said);
    if (part || std::abs(excess) <= kDurationTolerance) return;
    if (excess < 0) {
      if (summary_.limited++ == 0)
        summary_.first_limited = fmt::format("the first {:.2f} s of the {:.2f} s of {}", said,
                                             is.seconds, sound.string());
    } else if (is.shortfall.empty()) {
      line["duration"] = is.seconds;
      if (summary_.corrected++ == 0)
        summary_.first_corrected = fmt::format("{} lasts {:.2f} s, its line said {:.2f}",
                                               sound.string(), is.seconds, said);
    }
  }

  [[noreturn]] static void refuse_segment(const fs::path& sound, double seconds, double offset,
                                          double duration) {
    throw AudioError(AudioFault::too_short,
                     fmt::format("'{}' lasts {:.3f} s and ends before {:.3f} + {:.3f} s",
                                 sound.string(), seconds, offset, duration),
                     "correct the offset and the duration of the segment, or remove its line");
  }

  fs::path measured_;  ///< the file of length_
  Length length_;
  std::set<std::string> opened_;   ///< files that were checked
  std::set<std::string> lacking_;  ///< files that end before the length that their header gives
  fs::path here_;
  const FolderManifestOptions& options_;
  FolderManifestSummary& summary_;
  BadList unfit_, all_bad_;
  std::vector<Line> lines_;
  std::set<std::string> held_;  // groups
};

/// A line of a manifest as a line of NeMo with a path that is absolute or relative to the working
/// directory. Throws AudioError.
nlohmann::ordered_json nemo_line(const std::string& line, const std::string& path,
                                 const std::string& place, bool no_texts) {
  nlohmann::ordered_json json = manifest_json(line);
  if (is_cut(json)) json = nemo_line_of_cut(json, path, place);
  if (json.is_object()) rename_to_nemo(json);
  if (json.is_object() && no_texts && !json.contains("text")) json["text"] = "";
  for (const char* key : {"audio_filepath", "text"})
    if (!json.is_object() || !json.contains(key) || !json[key].is_string()) {
      const std::string other = json.is_object() ? advice_on_manifest_line(json) : "";
      throw AudioError(AudioFault::bad_line, fmt::format("no '{}' that is a text", key),
                       !other.empty() ? other
                                      : "a manifest has lines {\"audio_filepath\": ..., "
                                        "\"duration\": ..., \"text\": ...}, or cuts of Lhotse");
    }
  json["audio_filepath"] =
      (fs::absolute(path).parent_path() / json["audio_filepath"].get<std::string>()).string();
  return json;
}

/// Adds the lines of a manifest.
void copy_manifest(const std::string& path, const FolderManifestOptions& options,
                   ManifestLines& made) {
  const std::string text = extension_of(path) == ".gz" ? read_lines(path) : text_of(path);
  TextRows rows(text, path);
  for (std::string line; rows.next(line);) {
    if (trim(line).empty()) continue;
    const std::string place = fmt::format("{}:{}", path, rows.number());
    nlohmann::ordered_json json;
    try {
      json = nemo_line(line, path, place, options.no_texts);
    } catch (const AudioError& error) {
      made.add_bad(place, error);
      continue;
    }
    made.add(std::move(json), place);
  }
}

/// Adds the recordings of a table or of a folder of Kaldi.
void add_list(const std::string& path, const FolderManifestOptions& options, ManifestLines& made,
              FolderManifestSummary& summary) {
  const auto use = [&](ManifestJson&& line, const std::string& place) {
    const std::string file = line["audio_filepath"].get<std::string>();
    const bool there = fs::is_regular_file(file_of_recording(file));
    const bool texted = line.contains("text") && !line["text"].get<std::string>().empty();
    if (!texted && options.no_texts) line["text"] = "";
    if (there && (texted || options.no_texts)) {
      made.add(std::move(line), place);
      return;
    }
    if (options.untexted)
      ++(there ? summary.without_text : summary.without_file);
    else if (there)
      made.add_unfit(place, fmt::format("'{}' has no text", file),
                     "--allow-missing leaves such recordings out, and --no-text writes lines "
                     "without a text");
    else
      made.add_unfit(place, fmt::format("there is no file '{}'", file),
                     "files are relative to the list, or to clips/, wavs/, wav/ or audio/ beside "
                     "it; --allow-missing leaves lines without a file out");
  };
  const std::int64_t unused = read_recording_list(
      path, use,
      [&](const std::string& place, const AudioError& error) { made.add_bad(place, error); });
  if (!options.no_texts) summary.unused_texts += unused;
}

/// Adds the recordings of folders, each with the text beside it.
void add_folders(const std::vector<std::string>& folders, const FolderManifestOptions& options,
                 ManifestLines& made, FolderManifestSummary& summary) {
  const Found found = files_below(folders, options.no_texts);
  std::vector<std::string> silent;
  std::int64_t empty = 0, texted = 0;
  for (const auto& [stem, path] : found.recordings) {
    const auto text = found.texts.find(stem);
    if (!options.no_texts && (text == found.texts.end() || text->second.empty())) {
      ++summary.without_text;
      empty += text != found.texts.end();
      if (silent.size() < kMostNamed) silent.push_back(path.string());
      continue;
    }
    ++texted;
    if (!silent.empty() && !options.untexted) continue;  // will be refused
    nlohmann::ordered_json line;
    line["audio_filepath"] = path.string();
    line["duration"] = kToMeasure;
    line["text"] = options.no_texts ? "" : text->second;
    made.add(std::move(line), path.string());
  }
  if (!silent.empty() && (!options.untexted || texted == 0)) {
    const std::string list = texted == 0 ? list_beside(folders) : "";
    throw DataError(
        fmt::format("{} of {} recordings have no text{}, first {}", summary.without_text,
                    found.recordings.size(),
                    empty > 0 ? fmt::format(" ({} without a text file, {} with an empty one)",
                                            summary.without_text - empty, empty)
                              : "",
                    join(silent, ", ")),
        !list.empty()
            ? list
            : fmt::format(
                  "the text of {} is expected in {}.txt; {}--no-text writes lines without a text",
                  silent.front(),
                  (fs::path(silent.front()).parent_path() / fs::path(silent.front()).stem())
                      .string(),
                  texted > 0 ? "--allow-missing leaves such recordings out, and " : ""));
  }
  for (const auto& [stem, text] : found.texts)
    if (!options.no_texts) summary.unused_texts += found.recordings.contains(stem) ? 0 : 1;
}

}  // namespace

bool is_sound_file(const std::string& path) {
  static const std::set<std::string> kSound{".wav",  ".flac", ".ogg", ".oga", ".opus", ".mp3",
                                            ".aiff", ".aif",  ".au",  ".w64", ".caf"};
  return kSound.contains(extension_of(path));
}

void require_manifest_place(const std::vector<std::string>& inputs, const std::string& out) {
  std::error_code ignored;
  for (const std::string& input : inputs)
    if (fs::equivalent(input, out, ignored))
      throw DeckError(fmt::format("--out {} is the input itself, and would be overwritten", out),
                      "write to another file");
  if (fs::is_directory(out, ignored))
    throw DeckError(
        fmt::format("--out {} is a folder", out),
        fmt::format("name a file, for example {}", (fs::path(out) / "manifest.json").string()));
  if (!fs::is_regular_file(out, ignored)) return;
  std::ifstream file(out, std::ios::binary);
  char first = ' ';
  while (file.get(first) && std::isspace(static_cast<unsigned char>(first)) != 0) continue;
  if (file && first != '{')
    throw DeckError(
        fmt::format("--out {} is a file, and no manifest: it would be overwritten", out),
        "write to another file, or remove this one");
}

std::string FolderManifestSummary::to_string() const {
  std::string text =
      fmt::format("recordings  {}, {}\n", format_count(recordings), format_duration(seconds));
  if (decoded > 0)
    text += fmt::format("checked     {}, {}: every sample was decoded\n",
                        counted(decoded, "recording"), format_duration(seconds_decoded));
  if (opened > 0)
    text +=
        fmt::format("not decoded {}, whose headers alone were read: --check-audio decodes all\n",
                    counted(opened, "recording"));
  if (without_text > 0)
    text += fmt::format("left out    {} without a text\n", format_count(without_text));
  if (unused_texts > 0)
    text += fmt::format("not used    {} without a recording\n", counted(unused_texts, "text"));
  if (bad.count() > 0)
    text += fmt::format("left out    {} that cannot be read:\n            {}\n",
                        counted(bad.count(), "recording"), join(bad.named(), "\n            "));
  if (const std::int64_t more = bad.count() - std::ssize(bad.named()); more > 0)
    text += fmt::format("            and {} more\n", more);
  if (without_file > 0)
    text += fmt::format("left out    {} without a file\n", counted(without_file, "line"));
  if (corrected > 0)
    text += fmt::format("durations   {} corrected; {}\n", format_count(corrected), first_corrected);
  if (limited > 0)
    text += fmt::format("durations   {} shorter than the file, which limit it as in NeMo: {}\n",
                        format_count(limited), first_limited);
  if (cut_off > 0)
    text += fmt::format("cut off     {}; the first {}\n", counted(cut_off, "file"), first_cut_off);
  if (parted > 0)
    text += fmt::format("numbers     {}, whose signs become blanks (3.50 becomes 3 50)\n",
                        counted(parted, "text"));
  if (measured > 0) text += fmt::format("durations   {} measured\n", format_count(measured));
  text += channel_line() + crowded_line();
  if (held > 0)
    text += fmt::format("held out    {} of {}, {}, in {}\n", counted(held, "line"),
                        counted(groups_held, held_by.c_str()), format_duration(seconds_held),
                        held_path);
  return text + written_lines();
}

std::string FolderManifestSummary::channel_line() const {
  if (without_channel == 0) return {};
  return fmt::format(
      "channels    {} {} with several and no \"channel\": data.channel in a deck chooses one (a\n"
      "            number from 0) or their average, and so does --channel of `choir transcribe`\n"
      "            and `choir prepare audio`; the first is {}\n",
      counted(without_channel, "line"),
      without_channel == 1 ? "has a recording" : "have recordings", first_without_channel);
}

std::string FolderManifestSummary::crowded_line() const {
  if (crowded.back() == 0) return {};
  std::vector<std::string> counts;
  for (int halvings = kMostHalvings; halvings > 0; --halvings)
    counts.push_back(fmt::format("{} with model.subsampling={}",
                                 format_count(crowded[static_cast<std::size_t>(halvings)]),
                                 1 << halvings));
  return fmt::format(
      "long texts  {}\n"
      "            have more characters than frames of sound, so that CTC cannot learn them with\n"
      "            data.labels=char: use a smaller model.subsampling, or pieces of words\n"
      "            (data.labels=bpe_256); if a text is not that of its recording, correct it\n"
      "            the first is {}\n",
      join(counts, ", "), first_crowded);
}

std::string FolderManifestSummary::written_lines() const {
  const std::string written = fmt::format("written     {}\n", path);
  if (with_words == 0) {
    const std::string texts = fs::path(path).replace_extension(".texts.json").string();
    return written +
           fmt::format("no texts    `{} transcribe RUN --manifest {} --out {}{}` makes them",
                       program_name(), as_typed({path}), as_typed({texts}),
                       without_channel > 0 ? " --channel average" : "");
  }
  const std::string channel = without_channel > 0 ? ", data.channel = \"average\"" : "";
  if (held > 0)
    return written + fmt::format("in a deck   data.train = [\"{}\"], data.val = [\"{}\"]{}", path,
                                 held_path, channel);
  const std::string name = fs::path(path).stem().string();
  const bool tests = name.starts_with("val") || name.starts_with("dev") || name.starts_with("test");
  return written +
         fmt::format("in a deck   data.{} = [\"{}\"]{}", tests ? "val" : "train", path, channel);
}

FolderManifestSummary write_folder_manifest(const std::vector<std::string>& paths,
                                            const std::string& out,
                                            const FolderManifestOptions& options) {
  require_manifest_place(paths, out);
  const fs::path here = fs::absolute(out).lexically_normal().parent_path();
  FolderManifestSummary summary{.path = out};
  if (options.held_out > 0) {
    fs::path held(out);
    held.replace_filename(held.stem().string() + "_held" + held.extension().string());
    summary.held_path = held.string();
    summary.held_by = options.held_out_by;
    require_manifest_place(paths, summary.held_path);
  }
  ManifestLines made(here, options, summary);
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    refuse_tarred(path);
    if (!fs::exists(path))
      throw DataError(
          fmt::format("no such folder: {}", path),
          advice_on_path(path,
                         "name folders with recordings and a text file beside each, or manifests"));
    const bool list = is_recording_table(path) || fs::is_directory(path);
    if (!list && !advice_on_recordings(path).empty())
      throw DataError(fmt::format("'{}' is not a manifest", path), advice_on_recordings(path));
    if (is_kaldi_folder(path) || is_recording_table(path))
      add_list(path, options, made, summary);
    else if (fs::is_directory(path))
      folders.push_back(path);
    else
      copy_manifest(path, options, made);
  }
  if (!folders.empty()) add_folders(folders, options, made, summary);
  made.refuse_bad();
  if (summary.recordings == 0)
    throw DataError("no recording is left: none has a file and a text",
                    "name other folders or manifests");
  std::error_code failed;
  fs::create_directories(here, failed);
  if (options.held_out > 0) {
    made.hold_out();
    write_whole_file(summary.held_path, made.text(true));
  }
  write_whole_file(out, made.text(false));
  return summary;
}

}  // namespace choir
