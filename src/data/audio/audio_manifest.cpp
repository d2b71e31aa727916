#include "src/data/audio/audio_manifest.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/recording_list.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

std::int32_t count_letters(std::string_view text) {
  std::int32_t letters = 0;
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    if (c.length == 0) throw AudioError(AudioFault::not_utf8, "its text is not UTF-8");
    text.remove_prefix(static_cast<std::size_t>(c.length));
    ++letters;
  }
  return letters;
}

constexpr const char* kManifestForm =
    "a manifest has lines {\"audio_filepath\": ..., \"duration\": ..., \"text\": ...}: `choir "
    "prepare manifest` makes one of a folder with recordings and texts, of Kaldi's folders, and of "
    "tables (.tsv, .csv)";

bool truthy(const ManifestJson& json, const char* key) {
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0;
  bad_line(fmt::format("\"{}\" is neither true nor false", key));
}

}  // namespace

ManifestJson manifest_json(const std::string& line) {
  if (line.starts_with("\xff\xfe") || line.starts_with("\xfe\xff"))
    throw AudioError(AudioFault::not_utf8, "the file is UTF-16",
                     "convert it: iconv -f UTF-16 -t UTF-8 IN > OUT");
  try {
    return read_ordered_json_line(line, "", {.exact_integers = true});
  } catch (const JsonError& error) {
    const JsonFault& fault = error.fault();
    const bool encoding = fault.cause.find("not UTF-8") != std::string::npos;
    throw AudioError(!fault.malformed ? AudioFault::bad_line
                     : encoding       ? AudioFault::not_utf8
                                      : AudioFault::not_json,
                     fmt::format("column {}: {}", fault.column, fault.cause),
                     encoding ? "convert the file, for example with iconv -f LATIN1 -t UTF-8"
                     : !trim(line).starts_with('{') ? kManifestForm
                                                    : error.hint());
  }
}

namespace {

/// The "id" of a line: a string, or an integer in its digits; "" if it has none.
std::string id_of(const ManifestJson& json) {
  const auto id = json.find("id");
  if (id == json.end() || id->is_null()) return {};
  if (id->is_string()) return id->get<std::string>();
  if (!id->is_number_integer()) bad_line("\"id\" is neither a string nor an integer");
  return dumped(*id);
}

}  // namespace

std::string advice_on_manifest_line(const ManifestJson& json) {
  if (json.contains("sources") || json.contains("recording_id"))
    return fmt::format(
        "it is a {} of Lhotse: make cuts of recordings and supervisions (lhotse cut simple -r "
        "recordings.jsonl -s supervisions.jsonl cuts.jsonl), and name the cuts",
        json.contains("sources") ? "Recording" : "Supervision");
  if (json.contains("audio_filepath") || json.contains("recording")) return {};
  for (const char* other :
       {"audio_path", "audio_file", "audio", "audio_filename", "wav_path", "wav", "filepath",
        "file_path", "filename", "file_name", "file", "path"})
    if (json.contains(other))
      return fmt::format(
          "its recording is in \"{}\", which NeMo calls \"audio_filepath\": `choir prepare "
          "manifest "
          "IN --out OUT` renames it",
          other);
  return {};
}

bool is_cut(const ManifestJson& json) {
  if (!json.is_object() || json.contains("audio_filepath")) return false;
  if (json.contains("recording") || json.contains("tracks")) return true;
  const auto type = json.find("type");
  return type != json.end() && type->is_string() &&
         type->get_ref<const std::string&>().ends_with("Cut");
}

void bad_line(const std::string& what) {
  throw AudioError(AudioFault::bad_line, what);
}

double number_of(const ManifestJson& json, const char* key, double otherwise) {
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return otherwise;
  if (!value->is_number()) bad_line(fmt::format("\"{}\" is not a number", key));
  return value->get<double>();
}

std::int64_t integer_of(const ManifestJson& json, const char* key, std::int64_t otherwise) {
  const double value = number_of(json, key, static_cast<double>(otherwise));
  if (value != std::floor(value) || std::abs(value) > 1e15)
    bad_line(fmt::format("\"{}\" is {}, not a whole number", key, value));
  return static_cast<std::int64_t>(value);
}

int small_of(const ManifestJson& json, const char* key, int otherwise) {
  const std::int64_t value = integer_of(json, key, otherwise);
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
    bad_line(fmt::format("\"{}\" is {}", key, value));
  return static_cast<int>(value);
}

std::string string_of(const ManifestJson& json, const char* key) {
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return {};
  if (!value->is_string()) bad_line(fmt::format("\"{}\" is not a string", key));
  return value->get<std::string>();
}

std::string resolve_audio_path(const std::string& folder, const std::string& path) {
  if (path.empty()) bad_line("the path of its audio is empty");
  if (path.starts_with("pipe:") || path.ends_with("|"))
    throw AudioError(AudioFault::refused, fmt::format("source '{}' is a command", path),
                     "commands are not run; name a file");
  if (const auto colon = path.find("://"); colon != std::string::npos && colon < 10)
    throw AudioError(AudioFault::refused, fmt::format("source '{}' is a URL", path),
                     "URLs are not fetched; name a file");
  const std::filesystem::path file(path);
  return file.is_absolute() || folder.empty() ? path : folder + "/" + path;
}

void check_times(double offset, double duration) {
  constexpr double kMost = 1e9;  // seconds
  if (!(offset >= 0 && offset < kMost)) bad_line(fmt::format("an offset of {} seconds", offset));
  if (!(duration >= 0 && duration < kMost))
    bad_line(fmt::format("a duration of {} seconds", duration));
  if (duration == 0) throw AudioError(AudioFault::zero_length, "a duration of 0 seconds");
}

void describe_entry(AudioEntry& entry, const std::string& text, const std::string& lang,
                    const ManifestJson& rest, AudioManifest& manifest) {
  entry.text_letters = count_letters(text);
  manifest.without_text += text.empty();
  ManifestJson head;
  head["id"] = entry.id;
  head["text"] = text;
  entry.before = dumped(head);
  entry.before.pop_back();
  entry.before += ",\"duration\":";
  entry.after = lang.empty() ? "" : ",\"lang\":" + dumped(ManifestJson(lang));
  if (!rest.empty())
    entry.after += "," + dumped(rest).substr(1);
  else
    entry.after += "}";
}

std::string AudioEntry::line(double seconds) const {
  return before + dumped(ManifestJson(seconds)) + after;
}

std::string AudioEntry::source() const {
  return member.empty() ? fmt::format("'{}'", path)
                        : fmt::format("'{}', member '{}'", path, member);
}

void add_nemo_line(const ManifestJson& json, const ManifestPlace& place, AudioManifest& manifest) {
  AudioEntry entry;
  entry.place = place.place;
  if (const std::string origin = string_of(json, "_place"); !origin.empty()) entry.place = origin;
  const std::string file = string_of(json, "audio_filepath");
  if (file.empty()) bad_line("it has no \"audio_filepath\"");
  const std::string named = id_of(json);
  entry.offset = number_of(json, "offset", 0);
  entry.whole = !json.contains("offset") || json["offset"].is_null();
  entry.id = !named.empty() ? named : entry.whole ? file : fmt::format("{}@{}", file, entry.offset);
  entry.channel = small_of(json, "channel", -1);
  if (json.contains("channel") && !json["channel"].is_null() && entry.channel < 0)
    bad_line(fmt::format("\"channel\" is {}; channels count from 0", entry.channel));
  entry.duration = number_of(json, "duration", -1);
  if (truthy(json, "_skipme")) {
    manifest.left_out.push_back({.place = entry.place,
                                 .id = entry.id,
                                 .reason = "_skipme",
                                 .detail = "the manifest requests it",
                                 .hint = {},
                                 .duration = std::max(0.0, entry.duration),
                                 .bad = false});
    return;
  }
  if (!json.contains("duration") || json["duration"].is_null())
    throw AudioError(AudioFault::bad_line,
                     json.contains("duration") ? "its \"duration\" is null, and seconds are needed"
                                               : "it has no \"duration\"",
                     "`choir prepare manifest IN --out OUT` measures missing durations");
  check_times(entry.offset, entry.duration);
  entry.rate = small_of(json, "sampling_rate", small_of(json, "sample_rate", 0));
  const std::int64_t shard = integer_of(json, "shard_id", -1);
  const std::string tar = place.tar ? place.tar(shard) : std::string();
  if (tar.empty()) {
    entry.path = resolve_audio_path(place.folder, file);
  } else {
    entry.path = tar;
    entry.member = file.starts_with("./") ? file.substr(2) : file;
  }
  const std::string text_key = json.contains("text") ? "text" : other_text_key(json);
  if (text_key.empty() && json.contains("text_filepath"))
    throw AudioError(AudioFault::bad_line, "its text is in a file, \"text_filepath\"",
                     "write the text itself into the line, as \"text\"");
  ManifestJson rest = json;
  for (const char* said : {"id", "duration", "lang", "_place"}) rest.erase(said);
  rest.erase(text_key);
  describe_entry(entry, string_of(json, text_key.c_str()), string_of(json, "lang"), rest, manifest);
  manifest.entries.push_back(std::move(entry));
}

namespace {

// Cuts of Lhotse manifests.

void refuse_other_kinds(const ManifestJson& cut) {
  std::string type = string_of(cut, "type");
  if (type.empty() && cut.contains("tracks")) type = "MixedCut";
  if (type.empty() || type == "MonoCut") return;
  const std::string whole = dumped(cut);
  std::string what = fmt::format("it is a {}", type), remedy;
  if (type == "MixedCut" && whole.find("\"PaddingCut\"") != std::string::npos) {
    what = "it is a padded cut (a MixedCut with a PaddingCut)";
    remedy = "name the cuts before they were padded: padding is added here where it is needed";
  } else if (type == "MixedCut") {
    what += ", which mixes or joins several cuts";
    remedy =
        "write what it sounds like to files, in Python: "
        "lhotse.CutSet.from_file(\"IN\").save_audios(\"FOLDER\").to_file(\"OUT.jsonl\")";
  } else if (type == "MultiCut") {
    what += ", which has several channels";
    remedy =
        "make a cut of each channel, in Python: lhotse.CutSet.from_cuts(m for c in "
        "lhotse.CutSet.from_file(\"IN\") for m in c.to_mono()).to_file(\"OUT.jsonl\")";
  } else {
    remedy = "remove its line: it has no recording";
  }
  throw AudioError(AudioFault::refused, what + "; only MonoCut is supported", remedy);
}

// Finds the file with the channel of the cut, and the index of that channel in the file.
void find_source(const ManifestJson& recording, const std::string& folder, AudioEntry& entry) {
  const auto sources = recording.find("sources");
  if (sources == recording.end() || !sources->is_array() || sources->empty())
    bad_line("its recording has no \"sources\"");
  for (const auto& source : *sources) {
    if (!source.is_object()) bad_line("a source of its recording is not an object");
    int index = entry.channel;
    if (const auto channels = source.find("channels");
        channels != source.end() && channels->is_array() && entry.channel >= 0) {
      const auto at = std::find(channels->begin(), channels->end(), entry.channel);
      if (at == channels->end()) continue;
      index = static_cast<int>(at - channels->begin());
    }
    const std::string type = string_of(source, "type");
    // A Shar source that names its tar, as in manifests of dialogues.
    if (const std::string tar = string_of(source, "source"); type == "shar" && !tar.empty()) {
      entry.path = tar;
      entry.member = entry.id;
      entry.by_stem = true;
      entry.channel = index;
      entry.rate = 0, entry.frames = 0;  // not checked: a placeholder has those of the cut
      return;
    }
    if (type != "file")
      throw AudioError(
          AudioFault::refused, fmt::format("its recording comes from a source of type '{}'", type),
          type == "shar" ? "name the Shar folder rather than its cuts"
                         : "only files are read; commands are not run and URLs are not fetched");
    entry.path = resolve_audio_path(folder, string_of(source, "source"));
    entry.channel = index;
    return;
  }
  throw AudioError(AudioFault::channels,
                   fmt::format("its recording has no channel {}", entry.channel));
}

/// True if the transforms of a recording only change its rate: the file is read at its own rate,
/// and resampled here. Throws AudioError that names any other transform.
bool resampled_only(const ManifestJson& recording) {
  const auto transforms = recording.find("transforms");
  if (transforms == recording.end() || transforms->is_null() || transforms->empty()) return false;
  if (!transforms->is_array()) bad_line("the \"transforms\" of its recording are not a list");
  for (const auto& transform : *transforms) {
    const std::string name = transform.is_object() ? string_of(transform, "name") : "";
    if (name == "Resample") continue;
    throw AudioError(
        AudioFault::refused,
        fmt::format("its recording has the transform {}", name.empty() ? dumped(transform) : name),
        "save the transformed audio with Lhotse first (cuts.save_audios)");
  }
  return true;
}

void find_audio(const ManifestJson& cut, const ManifestPlace& place, AudioEntry& entry) {
  if (cut.contains("channel") && cut["channel"].is_array())
    throw AudioError(AudioFault::refused, "it has several channels; only MonoCut is supported");
  entry.channel = small_of(cut, "channel", -1);
  if (!place.shar.empty()) {
    entry.path = place.shar;
    entry.member = entry.id;
    entry.by_stem = true;
    entry.occurrence = place.occurrence;
    return;
  }
  const auto recording = cut.find("recording");
  if (recording == cut.end() || !recording->is_object()) bad_line("it has no \"recording\"");
  entry.rate = small_of(*recording, "sampling_rate", 0);
  entry.frames = integer_of(*recording, "num_samples", 0);
  if (resampled_only(*recording)) entry.rate = 0, entry.frames = 0;  // the file has another rate
  find_source(*recording, place.folder, entry);
}

std::vector<ManifestJson> supervisions_of(const ManifestJson& cut) {
  std::vector<ManifestJson> all;
  const auto list = cut.find("supervisions");
  if (list == cut.end() || list->is_null()) return all;
  if (!list->is_array()) bad_line("\"supervisions\" is not a list");
  for (const auto& supervision : *list) {
    if (!supervision.is_object()) bad_line("a supervision is not an object");
    all.push_back(supervision);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return number_of(a, "start", 0) < number_of(b, "start", 0);
  });
  return all;
}

std::string first_string(const std::vector<ManifestJson>& supervisions, const char* key) {
  for (const auto& supervision : supervisions)
    if (std::string value = string_of(supervision, key); !value.empty()) return value;
  return {};
}

void add_joined(AudioEntry entry, const std::vector<ManifestJson>& supervisions, ManifestJson rest,
                AudioManifest& manifest) {
  std::string text;
  for (const auto& supervision : supervisions) {
    const std::string part = string_of(supervision, "text");
    if (!text.empty() && !part.empty()) text += ' ';
    text += part;
  }
  if (const std::string speaker = first_string(supervisions, "speaker"); !speaker.empty())
    rest["speaker"] = speaker;
  if (!supervisions.empty()) rest["supervisions"] = supervisions;
  describe_entry(entry, text, first_string(supervisions, "language"), rest, manifest);
  manifest.entries.push_back(std::move(entry));
}

// Adds an utterance for each supervision: the part of it that lies within the cut.
void add_trimmed(const AudioEntry& cut, const std::vector<ManifestJson>& supervisions,
                 const ManifestJson& rest, AudioManifest& manifest) {
  if (supervisions.empty()) {
    manifest.left_out.push_back({.place = cut.place,
                                 .id = cut.id,
                                 .reason = "no supervision",
                                 .detail = "there is nothing to trim the cut to",
                                 .hint = {},
                                 .duration = cut.duration,
                                 .bad = false});
    return;
  }
  std::vector<AudioEntry> made;
  for (std::size_t i = 0; i < supervisions.size(); ++i) {
    const double start = number_of(supervisions[i], "start", 0);
    const double begin = std::max(0.0, start);
    const double end = std::min(cut.duration, start + number_of(supervisions[i], "duration", -1));
    if (!(end > begin)) bad_line(fmt::format("supervision {} does not lie within the cut", i));
    AudioEntry entry = cut;
    entry.id = fmt::format("{}-{}", cut.id, i);
    entry.offset = cut.offset + begin;
    entry.duration = end - begin;
    made.push_back(std::move(entry));
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    ManifestJson own = supervisions[i];
    own["start"] = number_of(own, "start", 0) - (made[i].offset - cut.offset);
    add_joined(made[i], {own}, rest, manifest);
  }
}

}  // namespace

void add_cut(const ManifestJson& cut, const ManifestPlace& place, bool trim,
             AudioManifest& manifest) {
  AudioEntry entry;
  entry.place = place.place;
  entry.id = id_of(cut);
  if (entry.id.empty()) bad_line("it has no \"id\"");
  refuse_other_kinds(cut);
  entry.offset = number_of(cut, "start", 0);
  if (!cut.contains("duration") || cut["duration"].is_null()) bad_line("it has no \"duration\"");
  entry.duration = number_of(cut, "duration", -1);
  check_times(entry.offset, entry.duration);
  find_audio(cut, place, entry);
  ManifestJson rest;
  for (const auto& [key, value] : cut.items()) {
    const bool said = key == "id" || key == "duration" || key == "supervisions" ||
                      key == "recording" || key == "features" || key == "type";
    if (!said) rest[key] = value;
  }
  const auto supervisions = supervisions_of(cut);
  if (trim)
    add_trimmed(entry, supervisions, rest, manifest);
  else
    add_joined(std::move(entry), supervisions, std::move(rest), manifest);
}

namespace {

namespace fs = std::filesystem;

struct Pattern {
  std::size_t begin = 0, end = 0;  // range of the whole pattern in the name
  std::string first, last;
};

// The first "_OP_a..b_CL_" or "{a..b}" of a name.
std::optional<Pattern> find_pattern(const std::string& name) {
  for (const auto& [open, close] : {std::pair<std::string, std::string>{"_OP_", "_CL_"},
                                    std::pair<std::string, std::string>{"{", "}"}}) {
    const std::size_t begin = name.find(open);
    if (begin == std::string::npos) continue;
    const std::size_t end = name.find(close, begin + open.size());
    if (end == std::string::npos) continue;
    const std::string inside = name.substr(begin + open.size(), end - begin - open.size());
    const std::size_t dots = inside.find("..");
    if (dots == std::string::npos) continue;
    Pattern found{begin, end + close.size(), inside.substr(0, dots), inside.substr(dots + 2)};
    const auto digits = [](const std::string& text) {
      return !text.empty() && text.size() < 10 &&
             text.find_first_not_of("0123456789") == std::string::npos;
    };
    if (digits(found.first) && digits(found.last)) return found;
  }
  return std::nullopt;
}

// Reads the lines of manifests; all kinds share the format of their lines and differ in the
// ManifestPlace.
class Reader {
 public:
  Reader(const ManifestOptions& options, AudioManifest& manifest)
      : options_(options), manifest_(manifest) {}

  void read(const std::string& path, ManifestPlace place) {
    LineReader lines(path);
    const std::size_t before = manifest_.entries.size() + manifest_.left_out.size();
    std::string line;
    of_id_.clear();
    while (lines.next(line)) {
      if (trim(line).empty()) continue;
      place.place = lines.place();
      read_line(line, place);
    }
    if (manifest_.entries.size() + manifest_.left_out.size() == before)
      throw DataError(fmt::format("manifest '{}' is empty", path),
                      "it needs one line per utterance");
  }

 private:
  void read_line(const std::string& line, ManifestPlace& place) {
    ManifestJson json;
    try {
      json = manifest_json(line);
      if (!json.is_object())
        throw AudioError(AudioFault::bad_line, "not a JSON object", kManifestForm);
      if (json.contains("audio_filepath")) {
        add_nemo_line(json, place, manifest_);
      } else if (is_cut(json) || (advice_on_manifest_line(json).empty() &&
                                  (json.contains("supervisions") || json.contains("type")))) {
        if (!place.shar.empty()) place.occurrence = of_id_[string_of(json, "id")]++;
        add_cut(json, place, options_.trim_to_supervisions, manifest_);
      } else {
        throw AudioError(AudioFault::bad_line,
                         "neither a line of NeMo (no \"audio_filepath\") nor a cut of Lhotse (no "
                         "\"recording\")",
                         advice_on_manifest_line(json));
      }
    } catch (const AudioError& error) {
      const bool named = json.is_object() && json.contains("id") && json["id"].is_string();
      const bool timed =
          json.is_object() && json.contains("duration") && json["duration"].is_number();
      const double duration = timed ? json["duration"].get<double>() : 0;
      manifest_.left_out.push_back({.place = place.place,
                                    .id = named ? json["id"].get<std::string>() : "",
                                    .reason = std::string(name_of(error.fault())),
                                    .detail = error.what(),
                                    .hint = error.hint(),
                                    .duration = duration > 0 ? duration : 0,
                                    .bad = true});
    }
  }

  const ManifestOptions& options_;
  AudioManifest& manifest_;
  std::map<std::string, int> of_id_;  // number of cuts per id so far in the Shar archive
};

std::string folder_of(const std::string& path) {
  return fs::path(path).parent_path().string();
}

void read_shar(const std::string& folder, Reader& reader) {
  const std::vector<SharPart> parts = shar_parts(folder);
  if (parts.empty()) {
    const std::string advice = advice_on_recordings(folder);
    throw DataError(
        fmt::format("folder '{}' is not a Lhotse Shar (no cuts.000000.jsonl.gz)", folder),
        advice.empty() ? "name the manifests in it instead" : advice);
  }
  for (const SharPart& part : parts) {
    ManifestPlace place;
    place.folder = folder;
    place.shar = fmt::format("{}/recording.{}.tar", folder, part.number);
    if (!fs::exists(place.shar))
      throw DataError(
          fmt::format("'{}' has no recordings: '{}' does not exist", part.cuts, place.shar),
          "each cuts.NNNNNN.jsonl.gz needs a recording.NNNNNN.tar");
    reader.read(part.cuts, place);
  }
}

// Derives the pattern of the tars from a manifest whose name is a pattern.
std::string tars_beside(const std::string& manifest) {
  const fs::path path(manifest);
  std::string name = path.filename();
  if (const auto at = name.find("manifest"); at != std::string::npos) name.replace(at, 8, "audio");
  const auto dot = name.rfind(".json");
  if (dot != std::string::npos) name.replace(dot, std::string::npos, ".tar");
  return path.has_parent_path() ? (path.parent_path() / name).string() : name;
}

void read_tarred(const std::string& argument, const std::string& tar_pattern, Reader& reader) {
  const auto manifests = expand_shard_pattern(argument);
  std::vector<std::int64_t> numbers;
  const auto tars = expand_shard_pattern(tar_pattern, &numbers);
  if (manifests.size() != 1 && manifests.size() != tars.size())
    throw DataError(fmt::format("'{}' names {} manifests, '{}' {} tars", argument, manifests.size(),
                                tar_pattern, tars.size()),
                    "each manifest needs its own tar");
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    ManifestPlace place;
    place.folder = folder_of(manifests[i]);
    if (manifests.size() == tars.size()) {
      place.tar = [&, i](std::int64_t) { return tars[i]; };
    } else {
      place.tar = [&](std::int64_t shard) {
        const auto at = std::find(numbers.begin(), numbers.end(), shard);
        if (at == numbers.end())
          throw AudioError(AudioFault::bad_line,
                           shard < 0 ? "it has no \"shard_id\" to say which tar has its audio"
                                     : fmt::format("\"shard_id\" {} is none of the tars '{}'",
                                                   shard, tar_pattern));
        return tars[static_cast<std::size_t>(at - numbers.begin())];
      };
    }
    reader.read(manifests[i], place);
  }
}

void read_plain(const std::string& path, Reader& reader) {
  if (const std::string advice = advice_on_recordings(path); !advice.empty())
    throw DataError(fmt::format("'{}' is not a manifest", path), advice);
  ManifestPlace place;
  place.folder = folder_of(path);
  // One manifest for all tars of a set, which NeMo calls audio_0.tar, ...
  place.tar = [folder = place.folder](std::int64_t shard) -> std::string {
    if (shard < 0) return {};
    const fs::path tar = fs::path(folder) / fmt::format("audio_{}.tar", shard);
    return fs::exists(tar) ? tar.string() : std::string();
  };
  reader.read(path, place);
}

}  // namespace

std::vector<std::string> expand_shard_pattern(const std::string& pattern,
                                              std::vector<std::int64_t>* numbers) {
  const auto found = find_pattern(pattern);
  if (!found) {
    if (numbers != nullptr) numbers->push_back(0);
    return {pattern};
  }
  const std::int64_t first = std::stoll(found->first), last = std::stoll(found->last);
  constexpr std::int64_t kMost = 1000000;
  if (last < first || last - first >= kMost)
    throw DataError(fmt::format("'{}' counts from {} to {}", pattern, first, last));
  const bool padded = found->first.size() > 1 && found->first.front() == '0';
  std::vector<std::string> names;
  for (std::int64_t i = first; i <= last; ++i) {
    const std::string number = fmt::format("{:0{}}", i, padded ? found->first.size() : 1);
    const auto rest = expand_shard_pattern(
        pattern.substr(0, found->begin) + number + pattern.substr(found->end), nullptr);
    // Several patterns in one name multiply, so the product is bounded.
    if (std::ssize(names) + std::ssize(rest) > kMost)
      throw DataError(fmt::format("'{}' names more than {} files", pattern, kMost));
    for (const auto& name : rest) {
      names.push_back(name);
      if (numbers != nullptr) numbers->push_back(i);
    }
  }
  return names;
}

std::vector<SharPart> shar_parts(const std::string& folder) {
  std::vector<SharPart> parts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("cuts.") && (name.ends_with(".jsonl.gz") || name.ends_with(".jsonl")))
      parts.push_back({folder + "/" + name, name.substr(5, name.find('.', 5) - 5)});
  }
  std::sort(parts.begin(), parts.end(),
            [](const SharPart& a, const SharPart& b) { return a.cuts < b.cuts; });
  return parts;
}

void refuse_tarred(const std::string& path) {
  const std::string packs = fmt::format(
      "`choir prepare audio {} --out FOLDER` reads them, and so does data.train or "
      "data.val of a deck; as files: ",
      as_typed({path}));
  if (!fs::exists(path) && find_pattern(path))
    throw DataError(
        fmt::format("'{}' names tarred manifests of NeMo, whose recordings are in tars", path),
        packs + "unpack the tars beside the manifests (tar xf), and name each manifest");
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return;
  // Cuts in a folder of sound files have similar names and no tars.
  const auto parts = shar_parts(path);
  if (std::ranges::any_of(parts, [&](const SharPart& part) {
        return fs::exists(fmt::format("{}/recording.{}.tar", path, part.number), ignored);
      }))
    throw DataError(fmt::format("'{}' is a Shar of Lhotse, whose recordings are in tars", path),
                    packs + "in Python, lhotse.CutSet.from_shar(in_dir=\"" + path +
                        "\").save_audios(\"FOLDER\").to_file(\"cuts.jsonl\")");
}

AudioManifest read_audio_manifests(const std::vector<std::string>& paths,
                                   const ManifestOptions& options) {
  if (!options.tars.empty() && options.tars.size() != paths.size())
    throw DeckError(
        fmt::format("{} manifests and {} patterns of tars", paths.size(), options.tars.size()),
        "give --tars once per manifest, in the same order");
  AudioManifest manifest;
  Reader reader(options, manifest);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!options.tars.empty())
      read_tarred(paths[i], options.tars[i], reader);
    else if (fs::is_directory(paths[i]))
      read_shar(paths[i], reader);
    else if (find_pattern(paths[i]))
      read_tarred(paths[i], tars_beside(paths[i]), reader);
    else
      read_plain(paths[i], reader);
  }
  return manifest;
}

}  // namespace choir
