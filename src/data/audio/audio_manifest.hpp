#pragma once
// Manifests of speech in the formats of NeMo and Lhotse, read into a list of utterances, and the
// conversion of single lines from JSON to utterances.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/core/json_value.hpp"
#include "src/data/audio/audio_error.hpp"

namespace choir {

/// One utterance, not yet decoded.
struct AudioEntry {
  std::string place;        ///< "manifest.json:12"
  std::string id;           ///< id of the cut; for NeMo its "id", else audio_filepath and @offset
  std::string path;         ///< path of the audio file or of the archive
  std::string member;       ///< file in the archive; "" for none
  bool by_stem = false;     ///< `member` has no extension (Shar)
  int occurrence = 0;       ///< index among the cuts with this id in the same Shar archive
  bool whole = false;       ///< no offset: the recording from its beginning, see span_of()
  double offset = 0;        ///< seconds
  double duration = 0;      ///< seconds
  int channel = -1;         ///< channel of the file, as given by the cut; -1: not given
  int rate = 0;             ///< sample rate that the file must have; 0: not given
  std::int64_t frames = 0;  ///< samples that the file must have; 0: not given
  std::int32_t text_letters = 0;  ///< code points of the text
  std::string before, after;      ///< its line: before + "duration" + after
  friend bool operator==(const AudioEntry&, const AudioEntry&) = default;

  /// The line of the packed manifest, without newline, for audio of this duration.
  std::string line(double seconds) const;
  /// The source for messages: "'x.wav'" or "'audio_0.tar', member 'x.wav'".
  std::string source() const;
};

/// An entry that does not become an utterance, with the reason.
struct OmittedEntry {
  std::string place, id;
  std::string reason;  ///< short and equal for all entries of a kind
  std::string detail;  ///< a sentence
  std::string hint;
  double duration = 0;  ///< seconds as planned; 0 if unknown
  bool bad = true;      ///< false if the manifest requests it (_skipme)
  friend bool operator==(const OmittedEntry&, const OmittedEntry&) = default;
};

struct AudioManifest {
  std::vector<AudioEntry> entries;  ///< in the order of the manifests
  std::vector<OmittedEntry> left_out;
  std::int64_t without_text = 0;
};

struct ManifestOptions {
  /// If true, each supervision of a cut becomes an utterance; else a cut becomes one utterance with
  /// the texts joined in order.
  bool trim_to_supervisions = false;
  /// Patterns of the tars of tarred manifests, one per manifest. Without them, `manifest` in the
  /// name of the manifest is replaced by `audio` (and a manifest whose name is no pattern is not
  /// tarred).
  std::vector<std::string> tars;
};

/// Local. Throws DataError for a missing or invalid manifest; bad single lines are added to
/// left_out. The supported formats are
/// NeMo           JSON lines {"audio_filepath", "duration", "text", "offset"?, "lang"?, ...};
///                "_skipme": true leaves a line out, "_place" names its source in messages
/// NeMo, tarred   the same, but audio_filepath is a member of a tar: manifest__OP_0..N_CL_.json (or
///                {0..N}) beside audio__OP_0..N_CL_.tar, or one manifest with a shard_id per line
/// Lhotse cuts    JSON lines of MonoCut, plain or gzip
/// Lhotse Shar    a folder with cuts.NNNNNN.jsonl[.gz] and recording.NNNNNN.tar
///
/// MultiCut, MixedCut, PaddingCut, recordings with transforms, and sources that are commands, URLs
/// or pipes are refused; the message names them. No command is ever run. Paths are absolute or
/// relative to the manifest.
AudioManifest read_audio_manifests(const std::vector<std::string>& paths,
                                   const ManifestOptions& options);

/// Expands a pattern: "a__OP_0..2_CL_.json" and "a_{0..2}.json" name three files, any other name
/// only itself. Numbers keep their leading zeros. `numbers`, if given, receives the number of each
/// file (that of the last pattern), or 0.
std::vector<std::string> expand_shard_pattern(const std::string& pattern,
                                              std::vector<std::int64_t>* numbers = nullptr);

/// Local. Throws DataError for a pattern of NeMo's tarred manifests and for a Shar of Lhotse: the
/// recordings of both are in tars, and the caller reads files alone.
void refuse_tarred(const std::string& path);

/// Throws AudioError of AudioFault::bad_line.
[[noreturn]] void bad_line(const std::string& what);

using ManifestJson = nlohmann::ordered_json;

/// A hint for an object that is neither a line of NeMo nor a cut of Lhotse, if its keys tell what
/// it is; else "".
std::string advice_on_manifest_line(const ManifestJson& json);

/// True for a line that is a cut of Lhotse, of a kind that is supported or not.
bool is_cut(const ManifestJson& json);

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

/// Throws AudioError unless offset >= 0, duration > 0, and both are below 1e9 seconds.
void check_times(double offset, double duration);

}  // namespace choir
