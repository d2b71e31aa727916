#pragma once
// Lists of recordings as other programs write them, for `choir prepare manifest`: folders of Kaldi,
// tables with a column of files and one of texts (Common Voice, LJSpeech, metadata.csv of Hugging
// Face), and JSON lines with other names for both. Local.
#include <functional>
#include <string>

#include "src/data/audio/audio_manifest.hpp"

namespace choir {

/// True for a folder of Kaldi: it has wav.scp.
bool is_kaldi_folder(const std::string& folder);
/// True for the name of a table: .tsv or .csv.
bool is_recording_table(const std::string& path);

/// The key of a channel that a list names, which applies if the file has several.
inline constexpr const char* kListedChannel = "_channel";

/// Calls use(line, place) for every recording of a folder of Kaldi or of a table, in order, with a
/// line of NeMo: "audio_filepath" is absolute or relative to the working directory, "text" may be
/// missing, and "duration" is there for segments only. `place` is file:line.
///
/// Returns the number of texts that belong to no recording.
///
/// Kaldi: wav.scp ("ID FILE"), text ("ID WORDS"), and if present segments ("ID RECORDING BEGIN END
/// [CHANNEL]", where an end of -1 is that of the recording), utt2spk and reco2file_and_channel. A
/// file, or "FILE.ark:BYTE", is relative to the working directory, as in Kaldi, else to the folder.
///
/// Tables have a header that names their columns; those of files and texts have one of the usual
/// names (path, file_name, ...; sentence, text, transcription, ...) in upper or lower case, and
/// offset, duration (seconds) and channel choose a part of the file. Fields of .csv may be quoted.
/// A table without a header whose fields are separated by | is one of LJSpeech: ID|TEXT, or
/// ID|TEXT|TEXT AS SPOKEN. Files are relative to the table, or to clips/, wavs/, wav/ or audio/
/// beside it, and may lack their extension.
///
/// Calls bad(place, error) for a row with another number of fields than the header or with a time
/// or channel that is none, and for a segment that is none. Throws DataError for a missing or
/// malformed file, a table without these columns (the message lists those that it has), other
/// columns with times of parts, and a command in wav.scp.
std::int64_t read_recording_list(
    const std::string& path,
    const std::function<void(ManifestJson&& line, const std::string& place)>& use,
    const std::function<void(const std::string& place, const AudioError& error)>& bad);

/// Renames the keys of a line of another program to "audio_filepath" and "text" where it has
/// exactly one that means them. Lines with these keys stay as they are.
void rename_to_nemo(ManifestJson& line);

/// The key that rename_to_nemo() would call "text"; "" if there is none, or a "text". Pure.
std::string other_text_key(const ManifestJson& line);

/// A hint for a file or folder that is no manifest: the command that makes one of it, or "".
std::string advice_on_recordings(const std::string& path);

}  // namespace choir
