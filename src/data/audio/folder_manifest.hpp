#pragma once
// Manifests of recordings with texts beside them, for people who have folders of sound and no
// manifest: `choir prepare manifest`. Local.
#include <cstdint>
#include <string>
#include <vector>

namespace choir {

struct FolderManifestOptions {
  bool lower_case = false;  ///< of texts: see lower_case()
  bool untexted = false;    ///< leaves out recordings without a text instead of refusing them
};

struct FolderManifestSummary {
  std::string path;  ///< of the manifest
  std::int64_t recordings = 0;
  double seconds = 0;
  std::int64_t without_text = 0;  ///< left out
  std::int64_t unused_texts = 0;  ///< texts without a recording
  std::int64_t measured = 0;      ///< lines of manifests that had no duration
  /// Lines for the user.
  std::string to_string() const;
};

/// Writes NeMo's JSON lines {"audio_filepath", "duration", "text"} for every recording in the
/// folders below `paths`, sorted by path. A path of a file is that of such a manifest, whose lines
/// are copied with all their keys, or one of Lhotse's cuts; missing durations are measured. The
/// text of NAME.wav is that of NAME.txt, its lines joined by blanks, or the line "NAME text" of a
/// file *.trans.txt of the same folder, as LibriSpeech has them. Recordings are files named .wav,
/// .flac, .ogg, .oga, .opus, .mp3, .aiff, .aif, .au, .w64 or .caf; other files are not looked at.
/// Durations are exact. Paths are relative to the folder of the manifest where the recordings are
/// below it, else absolute.
///
/// Throws DataError for a folder that does not exist or has no recording, a recording that cannot
/// be opened or has no text, a text that is empty or not UTF-8, and two texts for one recording;
/// StorageError if the manifest cannot be written.
FolderManifestSummary write_folder_manifest(const std::vector<std::string>& paths,
                                            const std::string& out,
                                            const FolderManifestOptions& options);

/// True for a name with the extension of a sound file, see write_folder_manifest().
bool is_sound_file(const std::string& path);

/// The text with every letter in lower case, by the rules of Unicode for single letters. Text that
/// is not UTF-8 keeps its bytes. Throws Error on a system without the locale C.UTF-8.
std::string lower_case(const std::string& text);

}  // namespace choir
