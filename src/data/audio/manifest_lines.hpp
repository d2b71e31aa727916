#pragma once
// Conversion of single manifest lines from JSON to utterances.
#include <functional>
#include <string>
#include <vector>
#include "src/core/json_value.hpp"

#include "src/data/audio/audio_manifest.hpp"

namespace choir {

/// Throws AudioError of AudioFault::bad_line.
[[noreturn]] void bad_line(const std::string& what);

using ManifestJson = nlohmann::ordered_json;

/// Parses one line. Throws AudioError: not_json or not_utf8 for a malformed line, bad_line for one
/// that repeats a key or is too large.
ManifestJson manifest_json(const std::string& line);

/// The location of manifest lines.
struct ManifestPlace {
  std::string folder;  ///< base of relative paths
  std::string place;   ///< file:line
  /// The tar of a tarred NeMo manifest by shard_id (-1: the line has none); "" if it is not tarred.
  std::function<std::string(std::int64_t shard_id)> tar;
  /// The tar with the recordings of a Shar folder; else "".
  std::string shar;
  int occurrence = 0;  ///< number of earlier cuts with this id in the same Shar archive
};

/// A part of a Lhotse Shar folder: cuts.NUMBER.jsonl[.gz], and FIELD.NUMBER.tar for each field of
/// sound. Members of the tar are named by the ids of the cuts.
struct SharPart {
  std::string cuts, number;  ///< path; number, for example "000000"
};
/// Local. Returns the parts in order; none if the folder is no Shar.
std::vector<SharPart> shar_parts(const std::string& folder);

/// Local. Adds one line, a JSON object, to the manifest or throws AudioError.
void add_nemo_line(const ManifestJson& json, const ManifestPlace& place, AudioManifest& manifest);
void add_cut(const ManifestJson& json, const ManifestPlace& place, bool trim,
             AudioManifest& manifest);

/// The value of a key, or `otherwise` if it is missing. Throws AudioError{bad_line} for another
/// type.
double number_of(const ManifestJson& json, const char* key, double otherwise);
std::int64_t integer_of(const ManifestJson& json, const char* key, std::int64_t otherwise);
/// The same, and throws for a number outside the range of int.
int small_of(const ManifestJson& json, const char* key, int otherwise);
std::string string_of(const ManifestJson& json, const char* key);

/// Resolves `path` relative to `folder`. Throws AudioError{refused} for URLs and pipes.
std::string resolve_audio_path(const std::string& folder, const std::string& path);

/// Sets line, id and length of the text; counts utterances without text.
void describe_entry(AudioEntry& entry, const std::string& text, const std::string& lang,
                    const ManifestJson& rest, AudioManifest& manifest);

/// Throws AudioError unless offset >= 0, duration > 0, and both are finite.
void check_times(double offset, double duration);

}  // namespace choir
