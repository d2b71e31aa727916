#include "src/data/audio/recording_list.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

using Fields = std::vector<std::string>;

// The names of columns and keys in order of preference.
constexpr std::array kFileNames{"audio_filepath",
                                "file_name",
                                "path",
                                "audio_path",
                                "audio_file",
                                "wav_filename",
                                "wav_path",
                                "audio_filename",
                                "filepath",
                                "file_path",
                                "filename",
                                "audio",
                                "wav",
                                "file"};
constexpr std::array<std::string_view, 6> kTimesOfParts{"start", "begin", "end",
                                                        "stop",  "onset", "offset"};
constexpr const char* kTimesOfTables = "the columns offset and duration are seconds, such as 1.25";
constexpr const char* kKaldiSegment = "a line of segments is: UTTERANCE RECORDING BEGIN END";
constexpr std::array kTextNames{"text",       "sentence",        "transcription",
                                "transcript", "transcripts",     "words",
                                "wrd",        "normalized_text", "normalised_text"};

std::string checked_text(const std::string& path) {
  std::string text = read_whole_file(path, kMostListMiB);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    throw DataError(fmt::format("'{}' is text in UTF-16", path),
                    fmt::format("convert it: iconv -f UTF-16 -t UTF-8 {} > NEW", path));
  if (valid_utf8(text) != text.size())
    throw DataError(fmt::format("'{}' is not UTF-8", path),
                    "convert it, for example with iconv -f LATIN1 -t UTF-8");
  return text;
}

/// One row of a table and the line on which it begins.
struct Row {
  Fields fields;
  int line = 0;
};

/// Rows of fields that may be in quotes, within which "" is a quote.
std::vector<Row> quoted_rows(const std::string& text, char separator, const std::string& path) {
  std::vector<Row> rows;
  Row row{.fields = {""}, .line = 1};
  int line = 1;
  bool quoted = false;
  const auto finish = [&] {
    if (row.fields.size() > 1 || !row.fields.front().empty()) rows.push_back(row);
    row = {.fields = {""}, .line = line};
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    line += c == '\n';
    if (quoted && c == '"' && at + 1 < text.size() && text[at + 1] == '"')
      row.fields.back() += text[++at];
    else if (c == '"' && (quoted || row.fields.back().empty()))
      quoted = !quoted;
    else if (quoted || (c != separator && c != '\n' && c != '\r'))
      row.fields.back() += c;
    else if (c == separator)
      row.fields.emplace_back();
    else if (c == '\n')
      finish();
  }
  if (quoted)
    throw DataError(fmt::format("{}:{}: a quote is not closed", path, row.line),
                    "a field with quotes has each of them twice, and is in quotes itself");
  finish();
  return rows;
}

/// Rows of fields without quotes, as in tables of Common Voice and LJSpeech.
std::vector<Row> plain_rows(const std::string& text, char separator) {
  std::vector<Row> rows;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (!trim(line).empty()) rows.push_back({split(line, separator), number});
  }
  return rows;
}

template <class Names>
std::optional<std::size_t> column_of(const Fields& header, const Names& names) {
  for (const char* name : names)
    for (std::size_t i = 0; i < header.size(); ++i)
      if (header[i] == name) return i;
  return std::nullopt;
}

/// The names of columns without blanks around them, in lower case: "Path", " wav".
Fields names_of_columns(const Row& first) {
  Fields names;
  for (const std::string& field : first.fields) {
    std::string& name = names.emplace_back(trim(field));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return names;
}

/// Refuses a table in which two columns have one of the names that are read, and columns that say
/// where in its recording a text begins or ends, because only NeMo's "offset" and "duration" have a
/// known unit.
void check_columns(const Fields& header, const std::string& path) {
  for (std::size_t i = 0; i < header.size(); ++i) {
    const auto again =
        std::find(header.begin() + static_cast<std::ptrdiff_t>(i) + 1, header.end(), header[i]);
    if (!header[i].empty() && again != header.end())
      throw DataError(fmt::format("{}:1: two columns are called '{}'", path, header[i]),
                      "remove one of them, or give it another name");
    if (header[i] == "offset") continue;
    std::string words = header[i];
    for (char& c : words)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = ' ';
    for (const std::string& word : split(words, ' '))
      if (std::ranges::find(kTimesOfParts, word) != kTimesOfParts.end())
        throw DataError(
            fmt::format("{}:1: the column '{}' says which part of a recording a text belongs to, "
                        "in a unit that is unknown here",
                        path, header[i]),
            "give the part in columns named offset and duration, in seconds; if the recordings are "
            "cut already, remove the column");
  }
}

/// The recording that a table names. A file that does not exist keeps the name that it has there.
std::string find_recording(const fs::path& folder, const std::string& name) {
  for (const char* below : {"", "clips", "wavs", "wav", "audio"})
    for (const char* extension : {"", ".wav", ".flac", ".mp3", ".ogg"}) {
      const fs::path path = folder / below / (name + extension);
      if (std::error_code ignored; fs::is_regular_file(path, ignored)) return path.string();
    }
  return (folder / name).string();
}

using UseLine = std::function<void(ManifestJson&& line, const std::string& place)>;
using UseBad = std::function<void(const std::string& place, const AudioError& error)>;

/// A number of seconds. Throws AudioError with `form`, how a line looks, for anything else.
double seconds_of(std::string_view field, const std::string& form) {
  const std::string_view word = trim(field);
  double value = 0;
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failed != std::errc() || end != word.data() + word.size())
    throw AudioError(AudioFault::bad_line, fmt::format("'{}' is no time in seconds", word), form);
  return value;
}

int channel_of(std::string_view field) {
  const std::string_view word = trim(field);
  int value = -1;
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failed != std::errc() || end != word.data() + word.size() || value < 0)
    throw AudioError(AudioFault::bad_line, fmt::format("'{}' is no channel", word),
                     "channels are numbers from 0");
  return value;
}

void read_table(const std::string& path, const UseLine& use, const UseBad& bad) {
  const std::string text = checked_text(path);
  const std::string first = text.substr(0, text.find('\n'));
  const char separator = first.find('\t') != std::string::npos  ? '\t'
                         : first.find('|') != std::string::npos ? '|'
                         : first.find(';') != std::string::npos ? ';'
                                                                : ',';
  const bool quotes = separator == ',' || separator == ';';
  std::vector<Row> rows = quotes ? quoted_rows(text, separator, path) : plain_rows(text, separator);
  if (rows.empty()) throw DataError(fmt::format("'{}' is empty", path));
  const Fields first_fields = rows.front().fields, header = names_of_columns(rows.front());
  auto file = column_of(header, kFileNames), words = column_of(header, kTextNames);
  if (!file && !words && separator == '|' && header.size() <= 3) {
    file = 0, words = header.size() - 1;  // LJSpeech
  } else if (file && words) {
    check_columns(header, path);
    rows.erase(rows.begin());
  } else {
    throw DataError(
        fmt::format("{}:1: no column names the {}; the columns are {}", path,
                    file    ? "texts"
                    : words ? "recordings"
                            : "recordings and the texts",
                    join(first_fields, ", ")),
        "name a column path (or file_name) and one sentence (or text, transcription) in the first "
        "line");
  }
  const auto speaker = column_of(header, std::array{"client_id", "speaker", "speaker_id"});
  const auto lang = column_of(header, std::array{"locale", "lang", "language"});
  const auto offset = column_of(header, std::array{"offset"});
  const auto duration = column_of(header, std::array{"duration"});
  const auto channel = column_of(header, std::array{"channel"});
  const fs::path folder = fs::path(path).parent_path();
  for (const Row& row : rows) {
    const std::string place = fmt::format("{}:{}", path, row.line);
    const std::size_t fields = row.fields.size(), needed = std::max(*file, *words) + 1;
    if ((fields != header.size() && separator != '|') || fields < needed) {
      bad(place,
          {AudioFault::bad_line,
           fields < needed ? fmt::format("{} fields, and {} are needed", fields, needed)
                           : fmt::format("{} fields, but the header has {}", fields, header.size()),
           separator == ',' || separator == ';' ? "a field that contains the separator is in quotes"
                                                : "a row has as many fields as the header"});
      continue;
    }
    ManifestJson line;
    line["audio_filepath"] = find_recording(folder, std::string(trim(row.fields[*file])));
    line["text"] = trim(row.fields[*words]);
    if (speaker && !row.fields[*speaker].empty()) line["speaker"] = row.fields[*speaker];
    if (lang && !row.fields[*lang].empty()) line["lang"] = row.fields[*lang];
    try {
      if (offset && !trim(row.fields[*offset]).empty()) {
        line["offset"] = seconds_of(row.fields[*offset], kTimesOfTables);
        if (duration) line["duration"] = seconds_of(row.fields[*duration], kTimesOfTables);
      }
      if (channel && !trim(row.fields[*channel]).empty())
        line[kListedChannel] = channel_of(row.fields[*channel]);
    } catch (const AudioError& error) {
      bad(place, error);
      continue;
    }
    use(std::move(line), place);
  }
}

/// The lines "KEY REST" of a file of Kaldi, and the numbers of its lines.
struct KaldiLine {
  std::string key, rest;
  int line = 0;
};
std::vector<KaldiLine> kaldi_lines(const std::string& path) {
  std::vector<KaldiLine> list;
  std::istringstream lines(checked_text(path));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string whole(trim(line));
    if (whole.empty()) continue;
    const std::size_t blank = whole.find_first_of(" \t");
    list.push_back({whole.substr(0, blank),
                    blank == std::string::npos ? "" : std::string(trim(whole.substr(blank))),
                    number});
  }
  return list;
}

std::map<std::string, std::string> kaldi_map(const std::string& path) {
  std::map<std::string, std::string> map;
  if (!fs::exists(path)) return map;
  for (KaldiLine& line : kaldi_lines(path))
    if (!map.emplace(line.key, line.rest).second)
      throw DataError(fmt::format("{}:{}: a second line of '{}'", path, line.line, line.key),
                      "keep one line for each name");
  return map;
}

/// The channels of recordings, from 0, by lines "RECORDING FILE A" (or B, 1, 2).
std::map<std::string, int> kaldi_channels(const std::string& path) {
  std::map<std::string, int> channels;
  if (!fs::exists(path)) return channels;
  for (const KaldiLine& line : kaldi_lines(path)) {
    const std::size_t blank = line.rest.find_last_of(" \t");
    const std::string word = blank == std::string::npos ? "" : line.rest.substr(blank + 1);
    if (word != "A" && word != "B" && word != "1" && word != "2")
      throw DataError(fmt::format("{}:{}: '{}' is no channel", path, line.line, word),
                      "a line of reco2file_and_channel is: RECORDING FILE A (or B)");
    channels[line.key] = word == "B" || word == "2" ? 1 : 0;
  }
  return channels;
}

/// Kaldi's words may be separated by any blanks, also tabs.
std::string with_single_blanks(std::string_view text) {
  std::string single;
  for (const std::string_view word : split_at_blanks(text)) {
    if (!single.empty()) single += ' ';
    single += word;
  }
  return single;
}

/// A line of segments: seconds of a recording, or -1 for its end, and its file.
struct KaldiSegment {
  std::string recording, file;
  double begin = 0, end = 0;
  std::optional<int> channel;
};

KaldiSegment kaldi_segment(const std::string& rest, const std::map<std::string, std::string>& files,
                           const std::string& list) {
  constexpr double kToTheEnd = -1;
  std::istringstream words(rest);
  KaldiSegment segment;
  std::string begin, end, channel;
  words >> segment.recording >> begin >> end >> channel;
  segment.begin = seconds_of(begin, kKaldiSegment), segment.end = seconds_of(end, kKaldiSegment);
  if (!channel.empty()) segment.channel = channel_of(channel);
  const auto file = files.find(segment.recording);
  if (file == files.end())
    throw AudioError(AudioFault::bad_line,
                     fmt::format("'{}' is not in {}", segment.recording, list),
                     "add the line of this recording, or remove its segments");
  if (!((segment.end > segment.begin || segment.end == kToTheEnd) && segment.begin >= 0))
    throw AudioError(
        AudioFault::zero_length,
        fmt::format("the segment from {} to {} s has no sound", segment.begin, segment.end),
        "correct its times, or remove the line; an end of -1 is that of the recording");
  segment.file = file->second;
  return segment;
}

/// Returns the number of texts without a recording.
std::int64_t read_kaldi(const std::string& folder, const UseLine& use, const UseBad& bad) {
  const std::string list = folder + "/wav.scp", cut = folder + "/segments";
  std::map<std::string, std::string> files;
  for (const KaldiLine& line : kaldi_lines(list)) {
    const std::string place = fmt::format("{}:{}", list, line.line);
    if (line.rest.ends_with('|'))
      throw DataError(
          fmt::format("{}: '{}' is a command, and commands are not run", place, line.rest),
          "run the commands once: in Kaldi, `wav-copy scp:wav.scp ark,scp:/DIR/out.ark,out.scp`, "
          "and "
          "out.scp as the wav.scp of a copy of this folder; or sox IN OUT.wav for each line");
    if (line.rest.empty()) throw DataError(fmt::format("{}: it names no file", place));
    if (!files.emplace(line.key, line.rest).second)
      throw DataError(fmt::format("{}: a second line of '{}'", place, line.key),
                      "keep one line for each name");
  }
  const auto texts = kaldi_map(folder + "/text"), speakers = kaldi_map(folder + "/utt2spk");
  const auto channels = kaldi_channels(folder + "/reco2file_and_channel");
  std::int64_t used = 0;
  const auto give = [&](const std::string& utterance, const std::string& recording,
                        const std::string& file, double begin, double end,
                        std::optional<int> segment_channel, const std::string& place) {
    ManifestJson line;
    std::error_code ignored;
    const bool here = fs::exists(file_of_recording(file), ignored);
    line["audio_filepath"] =
        here || fs::path(file).is_absolute() ? file : (fs::path(folder) / file).string();
    if (begin > 0 || end > begin) line["offset"] = begin;
    if (end > begin) line["duration"] = end - begin;  // else to the end of the recording
    if (const auto text = texts.find(utterance); text != texts.end()) {
      line["text"] = with_single_blanks(text->second);
      ++used;
    }
    line["id"] = utterance;
    if (const auto who = speakers.find(utterance); who != speakers.end())
      line["speaker"] = who->second;
    if (const auto channel = channels.find(recording); channel != channels.end())
      line[kListedChannel] = channel->second;
    if (segment_channel) line[kListedChannel] = *segment_channel;
    use(std::move(line), place);
  };
  if (!fs::exists(cut)) {
    for (const KaldiLine& line : kaldi_lines(list))
      give(line.key, line.key, line.rest, 0, 0, {}, fmt::format("{}:{}", list, line.line));
    return std::ssize(texts) - used;
  }
  for (const KaldiLine& line : kaldi_lines(cut)) {
    const std::string place = fmt::format("{}:{}", cut, line.line);
    KaldiSegment segment;
    try {
      segment = kaldi_segment(line.rest, files, list);
    } catch (const AudioError& error) {
      bad(place, error);
      continue;
    }
    give(line.key, segment.recording, segment.file, segment.begin, segment.end, segment.channel,
         place);
  }
  return std::ssize(texts) - used;
}

/// Renames the first of the names that the line has, if it has no key `as`.
template <class Names>
void rename(ManifestJson& line, const Names& names, const char* as) {
  if (line.contains(as)) return;
  for (const char* name : names) {
    const auto value = line.find(name);
    if (value == line.end()) continue;
    // An "audio" of Hugging Face is an object with the path.
    ManifestJson kept = value->is_object() && value->contains("path") ? (*value)["path"] : *value;
    if (!kept.is_string()) continue;
    line.erase(name);
    line[as] = std::move(kept);
    return;
  }
}

}  // namespace

bool is_kaldi_folder(const std::string& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder + "/wav.scp", ignored);
}

bool is_recording_table(const std::string& path) {
  return path.ends_with(".tsv") || path.ends_with(".csv");
}

std::int64_t read_recording_list(
    const std::string& path,
    const std::function<void(ManifestJson&& line, const std::string& place)>& use,
    const std::function<void(const std::string& place, const AudioError& error)>& bad) {
  if (is_kaldi_folder(path)) return read_kaldi(path, use, bad);
  read_table(path, use, bad);
  return 0;
}

void rename_to_nemo(ManifestJson& line) {
  rename(line, kFileNames, "audio_filepath");
  rename(line, kTextNames, "text");
}

std::string other_text_key(const ManifestJson& line) {
  if (line.contains("text")) return {};
  for (const char* name : kTextNames)
    if (const auto found = line.find(name); found != line.end() && found->is_string()) return name;
  return {};
}

std::string advice_on_recordings(const std::string& path) {
  std::error_code ignored;
  const auto make = [](const std::string& from, std::string_view what) {
    return fmt::format("{}: `choir prepare manifest {} --out train.json` makes a manifest of them",
                       what, from);
  };
  if (is_recording_table(path)) return make(path, "it is a table of recordings");
  if (path.ends_with(".trans.txt"))
    return make(fs::path(path).parent_path().string(), "it has the texts of recordings beside it");
  if (is_sound_file(path) && fs::is_regular_file(path, ignored))
    return "it is a recording: `choir prepare manifest FOLDER --out train.json` makes a manifest "
           "of "
           "the recordings in a folder, and `choir transcribe RUN FILE` takes them as they are";
  if (const std::string name = fs::path(path).filename().string();
      (name == "wav.scp" || name == "segments" || name == "text") &&
      is_kaldi_folder(fs::path(path).parent_path().string()))
    return make(fs::path(path).parent_path().string(), "it belongs to a folder of Kaldi");
  if (!fs::is_directory(path, ignored)) return {};
  if (is_kaldi_folder(path)) return make(path, "it has recordings in the format of Kaldi");
  bool arrow = false, parquet = false, sounds = false;
  std::string table;
  for (auto at = fs::recursive_directory_iterator(
           path, fs::directory_options::skip_permission_denied, ignored);
       at != fs::recursive_directory_iterator(); at.increment(ignored)) {
    if (ignored) break;
    const std::string name = at->path().string();
    arrow = arrow || name.ends_with(".arrow");
    parquet = parquet || name.ends_with(".parquet");
    sounds = sounds || is_sound_file(name) || name.ends_with(".trans.txt");
    if (is_recording_table(name) && (table.empty() || name < table)) table = name;
    if (sounds && !table.empty()) break;
  }
  if (!table.empty() && sounds) return make(table, "its recordings are listed in a table of texts");
  if (sounds) return make(path, "it has recordings");
  if (arrow || parquet)
    return "it is a data set of Hugging Face, whose sound is inside its files: write each sound "
           "and "
           "its text as N.wav and N.txt (in Python soundfile.write(f\"out/{i}.wav\", "
           "row[\"audio\"][\"array\"], row[\"audio\"][\"sampling_rate\"])), then `choir prepare "
           "manifest out --out train.json`";
  return {};
}

}  // namespace choir
