#pragma once
// Single lines of manifests: JSON to utterances.
#include <functional>
#include <string>
#include <vector>
#include "choir/core/json_value.hpp"

#include "choir/data/audio/audio_manifest.hpp"

namespace choir {

/// Throws AudioError of AudioFault::bad_line.
[[noreturn]] void bad_line(const std::string& what);

using ManifestJson = nlohmann::ordered_json;

/// One line. Throws AudioError: not_json or not_utf8 for a malformed line, bad_line for one that
/// gives a key twice or holds too much.
ManifestJson manifest_json(const std::string& line);

/// Where the lines come from.
struct ManifestPlace {
  std::string folder;  ///< relative paths begin here
  std::string place;   ///< file:line
  /// Tar of a tarred NeMo manifest by shard_id (-1: the line has none); "" where it is not tarred.
  std::function<std::string(std::int64_t shard_id)> tar;
  /// Tar with the recordings of the Shar folder; "" outside of one.
  std::string shar;
  int occurrence = 0;  ///< how many cuts of this id came before in the same Shar archive
};

/// A folder of Lhotse's Shar: cuts.NUMBER.jsonl[.gz] and, of each field of theirs that is sound,
/// FIELD.NUMBER.tar, whose members are named by the cuts' ids.
struct SharPart {
  std::string cuts, number;  ///< path; "000000"
};
/// Local. In their order; none where the folder is no Shar.
std::vector<SharPart> shar_parts(const std::string& folder);

/// Local. One line that holds an object. Both add to the manifest or throw AudioError.
void add_nemo_line(const ManifestJson& json, const ManifestPlace& place, AudioManifest& manifest);
void add_cut(const ManifestJson& json, const ManifestPlace& place, bool trim,
             AudioManifest& manifest);

/// Values of keys; AudioError{bad_line} for another type.
double number_of(const ManifestJson& json, const char* key, double otherwise);
std::int64_t integer_of(const ManifestJson& json, const char* key, std::int64_t otherwise);
/// ... and for one that is no int.
int small_of(const ManifestJson& json, const char* key, int otherwise);
std::string string_of(const ManifestJson& json, const char* key);

/// `path` as seen from `folder`; AudioError{refused} for URLs and pipes.
std::string resolve_audio_path(const std::string& folder, const std::string& path);

/// Sets line, id and letters; counts utterances without text.
void describe_entry(AudioEntry& entry, const std::string& text, const std::string& lang,
                    const ManifestJson& rest, AudioManifest& manifest);

/// offset >= 0, duration > 0, both finite.
void check_times(double offset, double duration);

}  // namespace choir
