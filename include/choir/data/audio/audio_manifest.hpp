#pragma once
// Manifests of speech, in the forms that NeMo and Lhotse write, read to a list of utterances.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/audio/audio_error.hpp"

namespace choir {

/// One utterance, not yet decoded.
struct AudioEntry {
  std::string place;              ///< "manifest.json:12"
  std::string id;                 ///< of the cut; of NeMo its "id", else audio_filepath and @offset
  std::string path;               ///< of the audio file, or of the archive
  std::string member;             ///< file in the archive; "" for none
  bool by_stem = false;           ///< `member` is without extension (Shar)
  int occurrence = 0;             ///< of the cuts with this id in this Shar archive: which
  bool whole = false;             ///< all of the recording, which must last `duration`
  double offset = 0;              ///< seconds
  double duration = 0;            ///< seconds
  int channel = -1;               ///< of the file, as the cut says; -1: it does not
  int rate = 0;                   ///< what the file must have; 0: nothing was said
  std::int64_t frames = 0;        ///< samples that the file must have; 0: nothing was said
  std::int32_t text_letters = 0;  ///< code points
  std::string before, after;      ///< its line: before + "duration" + after
  friend bool operator==(const AudioEntry&, const AudioEntry&) = default;

  /// The line of the packed manifest (no newline) for so many seconds of audio.
  std::string line(double seconds) const;
  /// "'x.wav'", "'audio_0.tar', member 'x.wav'"
  std::string source() const;
};

/// What does not become an utterance, and why.
struct OmittedEntry {
  std::string place, id;
  std::string reason;  ///< short, the same for all of a kind
  std::string detail;  ///< a sentence
  std::string hint;
  double duration = 0;  ///< as planned, seconds; 0 where unknown
  bool bad = true;      ///< false: it was asked for (_skipme)
  friend bool operator==(const OmittedEntry&, const OmittedEntry&) = default;
};

struct AudioManifest {
  std::vector<AudioEntry> entries;  ///< in the order of the manifests
  std::vector<OmittedEntry> left_out;
  std::int64_t without_text = 0;
};

struct ManifestOptions {
  /// A cut becomes one utterance a supervision, rather than one with the texts joined in order.
  bool trim_to_supervisions = false;
  /// Tars of tarred manifests, a pattern for each manifest; none: `manifest` in the name of the
  /// manifest is replaced by `audio` (and an unpatterned manifest is not tarred).
  std::vector<std::string> tars;
};

/// Local. Throws DataError for a manifest that is missing or no manifest;
/// what is wrong with single lines goes to left_out. The forms that are read:
/// NeMo           JSON lines {"audio_filepath", "duration", "text", "offset"?, "lang"?, ...};
///                "_skipme": true leaves a line out
/// NeMo, tarred   the same, audio_filepath being a member of a tar: manifest__OP_0..N_CL_.json (or
///                {0..N}) beside audio__OP_0..N_CL_.tar; or one manifest whose lines say shard_id
/// Lhotse cuts    JSON lines of MonoCut, plain or gzip
/// Lhotse Shar    a folder with cuts.NNNNNN.jsonl[.gz] and recording.NNNNNN.tar
///
/// MultiCut, MixedCut, PaddingCut, recordings with transforms, and sources that are commands, URLs
/// or pipes are refused by name; no command is ever run. Paths are absolute or relative to the
/// manifest.
AudioManifest read_audio_manifests(const std::vector<std::string>& paths,
                                   const ManifestOptions& options);

/// "a__OP_0..2_CL_.json" and "a_{0..2}.json" name three files; any other name itself. Numbers keep
/// their leading zeros. `numbers`, where given, gets the number of each (of the last pattern), or
/// 0.
std::vector<std::string> expand_shard_pattern(const std::string& pattern,
                                              std::vector<std::int64_t>* numbers = nullptr);

}  // namespace choir
