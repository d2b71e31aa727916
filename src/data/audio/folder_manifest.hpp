#pragma once
// Manifests of recordings with texts beside them, for people who have folders of sound and no
// manifest: `choir prepare manifest`. Local.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/transcript_form.hpp"

namespace choir {

struct FolderManifestOptions {
  TranscriptForm form;    ///< of the texts
  bool untexted = false;  ///< leaves out recordings without a text instead of refusing them
  bool no_texts = false;  ///< writes all texts as "", and needs none
  bool skip_bad = false;  ///< leaves out recordings that cannot be read instead of refusing them
  /// Hours of sound, in the order of the lines, whose recordings are decoded to find damage. Only
  /// the headers of further recordings are read. An hour takes about a second.
  double checked_hours = 10;
  /// Share of the lines that are written to a manifest of their own, OUT_held.json; 0: none. Lines
  /// of one "recording", "speaker" or "folder" are never divided.
  double held_out = 0;
  std::string held_out_by = "recording";
};

/// The halvings of time of an encoder with the usual model.subsampling, 8.
inline constexpr int kMostHalvings = 3;

struct FolderManifestSummary {
  std::string path;  ///< of the manifest
  std::int64_t recordings = 0;
  double seconds = 0;
  std::int64_t without_text = 0;  ///< left out
  std::int64_t without_file = 0;  ///< lines of lists, left out
  std::int64_t unused_texts = 0;  ///< texts without a recording
  BadList bad;                    ///< lines that are wrong, or whose recording cannot be read
  std::int64_t measured = 0;      ///< lines of manifests that had no duration
  std::int64_t corrected = 0;     ///< lines of manifests that had a longer duration than the file
  std::string first_corrected;    ///< one of them
  std::int64_t limited = 0;       ///< lines without an offset whose duration limits the recording
  std::string first_limited;      ///< one of them
  std::int64_t parted = 0;        ///< texts with a sign between digits that became a blank
  std::int64_t cut_off = 0;       ///< files that end before the length that their header gives
  std::string first_cut_off;      ///< one of them
  std::int64_t without_channel = 0;   ///< lines without a channel whose recording has several
  std::string first_without_channel;  ///< one of them
  std::int64_t with_words = 0;        ///< lines whose text is not empty
  /// Texts with more characters than CTC has frames for, by the number of halvings of time.
  std::array<std::int64_t, kMostHalvings + 1> crowded{};
  std::string first_crowded;     ///< one of them, after kMostHalvings
  std::int64_t held = 0;         ///< lines that are held out, included in `recordings`
  std::int64_t groups_held = 0;  ///< recordings, speakers or folders that they belong to
  double seconds_held = 0;
  std::int64_t decoded = 0;  ///< recordings that were decoded completely
  double seconds_decoded = 0;
  std::int64_t opened = 0;         ///< recordings of which only the header was read
  std::string held_path, held_by;  ///< their manifest; "recording", "speaker" or "folder"
  /// Lines for the user.
  std::string to_string() const;

 private:
  std::string channel_line() const;
  std::string crowded_line() const;
  /// The last lines: the files that were written, and how they are used.
  std::string written_lines() const;
};

/// Seconds by which the duration of a manifest, which is rounded, may differ from that of the file.
/// A duration that is shorter by more limits a recording to its beginning, as in NeMo; one that is
/// longer by more is wrong.
inline constexpr double kDurationTolerance = 0.1;

/// Writes NeMo's JSON lines {"audio_filepath", "duration", "text"} for every recording in the
/// folders below `paths`, sorted by path. A path of a file is that of such a manifest, whose lines
/// are copied with all their keys, one of Lhotse's cuts, or a table; a folder of Kaldi is read by
/// its lists (see read_recording_list()). Durations that are missing are measured, and those that
/// are longer than the file are corrected unless the file was cut off. A whole recording that was
/// cut off is bad if it has a text. The text of NAME.wav is that
/// of NAME.txt, its lines joined by blanks, or the line "NAME text" of a file *.trans.txt of the
/// same folder, as LibriSpeech has them. Recordings are files named .wav, .flac, .ogg, .oga, .opus,
/// .mp3, .aiff, .aif, .au, .w64 or .caf; other files are not looked at. Durations are exact. Paths
/// are relative to the folder of the manifest where the recordings are below it, else absolute.
///
/// With `held_out`, some lines are written to OUT_held.json instead, in the same order; equal
/// inputs are divided equally.
///
/// Throws DataError for a folder that does not exist or has no recording, a recording that cannot
/// be decoded or has no text, a text that is empty or not UTF-8, two texts for one recording, and a
/// segment that does not lie in its recording; DeckError for an `out` that is no place for a
/// manifest (require_manifest_place()); StorageError if the manifest cannot be written.
FolderManifestSummary write_folder_manifest(const std::vector<std::string>& paths,
                                            const std::string& out,
                                            const FolderManifestOptions& options);

/// Throws DeckError if `out`, where a manifest will be written, is one of the inputs, or a file
/// that is no manifest.
void require_manifest_place(const std::vector<std::string>& inputs, const std::string& out);

/// True for a name with the extension of a sound file, see write_folder_manifest().
bool is_sound_file(const std::string& path);

}  // namespace choir
