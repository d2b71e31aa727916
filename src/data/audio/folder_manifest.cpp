#include "src/data/audio/folder_manifest.hpp"

#include <fmt/core.h>
#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/sound_stream.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNamed = 5;

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

Found files_below(const std::vector<std::string>& folders) {
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
               !found.recordings.emplace(stem.string(), file).second)
        throw DataError(fmt::format("'{}' and '{}' have one text",
                                    found.recordings[stem.string()].string(), file.string()),
                        "keep one of them, or give them different names");
    }
  }
  if (found.recordings.empty() && !folders.empty())
    throw DataError(fmt::format("no recording is below {}", join(folders, ", ")),
                    "recordings are files named .wav, .flac, .ogg, .opus, .mp3, .aiff, .au, .w64 "
                    "or .caf");
  return found;
}

/// The path of a recording as a manifest in the folder `here` names it.
std::string named_from(const fs::path& here, const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  const fs::path relative = absolute.lexically_relative(here);
  const bool below = !relative.empty() && *relative.begin() != "..";
  return below ? relative.string() : absolute.string();
}

double seconds_of_recording(const fs::path& path) {
  try {
    const auto stream = open_sound(bytes_of_file(path.string()), path.string());
    return static_cast<double>(stream->form().frames) / stream->form().rate;
  } catch (const AudioError& error) {
    throw DataError(fmt::format("{}: {}", path.string(), error.what()), error.hint());
  }
}

/// A cut of Lhotse as a line of NeMo.
nlohmann::ordered_json nemo_line_of_cut(const nlohmann::ordered_json& cut, const std::string& path,
                                        const std::string& place) {
  AudioManifest manifest;
  try {
    add_cut(cut, {.folder = fs::path(path).parent_path().string(), .place = place}, false,
            manifest);
  } catch (const AudioError& error) {
    throw DataError(fmt::format("{}: {}", place, error.what()), error.hint());
  }
  const AudioEntry& entry = manifest.entries.front();
  if (!entry.member.empty())
    throw DataError(fmt::format("{}: its recording is in a tar", place),
                    "`choir prepare audio` reads it");
  const auto packed = read_ordered_json(entry.line(entry.duration), place);
  nlohmann::ordered_json line;
  line["audio_filepath"] = fs::absolute(entry.path).string();
  if (entry.offset > 0) line["offset"] = entry.offset;
  line["duration"] = entry.duration;
  line["text"] = packed["text"];
  for (const char* key : {"id", "lang", "speaker"})
    if (packed.contains(key)) line[key] = packed[key];
  if (entry.channel >= 0) line["channel"] = entry.channel;
  return line;
}

/// The lines of a manifest, as lines of a manifest in the folder `here`.
std::string copied_lines(const std::string& path, const fs::path& here,
                         const FolderManifestOptions& options, FolderManifestSummary& summary) {
  std::istringstream lines(extension_of(path) == ".gz" ? read_lines(path) : text_of(path));
  std::string made, line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (trim(line).empty()) continue;
    const std::string place = fmt::format("{}:{}", path, number);
    auto json = read_ordered_json(line, place);
    if (json.is_object() && json.contains("recording")) json = nemo_line_of_cut(json, path, place);
    for (const char* key : {"audio_filepath", "text"})
      if (!json.is_object() || !json.contains(key) || !json[key].is_string()) {
        const std::string other = json.is_object() ? advice_on_manifest_line(json) : "";
        throw DataError(fmt::format("{}: no '{}' that is a text", place, key),
                        !other.empty() ? other
                                       : "a manifest has lines {\"audio_filepath\": ..., "
                                         "\"duration\": ..., \"text\": ...}, or cuts of Lhotse");
      }
    const fs::path sound =
        fs::absolute(path).parent_path() / json["audio_filepath"].get<std::string>();
    json["audio_filepath"] = named_from(here, sound);
    if (options.lower_case) json["text"] = lower_case(json["text"].get<std::string>());
    if (!json.contains("duration") || json["duration"].is_null()) {
      const bool from = json.contains("offset") && json["offset"].is_number();
      json["duration"] = seconds_of_recording(sound) - (from ? json["offset"].get<double>() : 0.0);
      ++summary.measured;
    }
    if (json["duration"].is_number()) summary.seconds += json["duration"].get<double>();
    ++summary.recordings;
    made += dumped(json) + "\n";
  }
  return made;
}

}  // namespace

bool is_sound_file(const std::string& path) {
  static const std::set<std::string> kSound{".wav",  ".flac", ".ogg", ".oga", ".opus", ".mp3",
                                            ".aiff", ".aif",  ".au",  ".w64", ".caf"};
  return kSound.contains(extension_of(path));
}

std::string lower_case(const std::string& text) {
  static const locale_t letters = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (letters == nullptr)
    throw Error(ExitCode::other,
                "this system has no locale C.UTF-8, whose letters are needed for lower case");
  std::string lower;
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    std::uint32_t letter = length == 1 ? first : first & (0xffu >> (length + 1));
    bool whole = first < 0x80 || (first >= 0xc2 && first < 0xf5 && at + length <= text.size());
    for (std::size_t i = 1; i < length && whole; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      whole = (next & 0xc0) == 0x80;
      letter = letter << 6 | (next & 0x3f);
    }
    if (!whole) {
      lower += text[at++];
      continue;
    }
    at += length;
    letter = static_cast<std::uint32_t>(towlower_l(static_cast<wint_t>(letter), letters));
    if (letter < 0x80) {
      lower += static_cast<char>(letter);
    } else if (letter < 0x800) {
      lower += static_cast<char>(0xc0 | letter >> 6);
      lower += static_cast<char>(0x80 | (letter & 0x3f));
    } else if (letter < 0x10000) {
      lower += static_cast<char>(0xe0 | letter >> 12);
      lower += static_cast<char>(0x80 | (letter >> 6 & 0x3f));
      lower += static_cast<char>(0x80 | (letter & 0x3f));
    } else {
      lower += static_cast<char>(0xf0 | letter >> 18);
      lower += static_cast<char>(0x80 | (letter >> 12 & 0x3f));
      lower += static_cast<char>(0x80 | (letter >> 6 & 0x3f));
      lower += static_cast<char>(0x80 | (letter & 0x3f));
    }
  }
  return lower;
}

std::string FolderManifestSummary::to_string() const {
  std::string text =
      fmt::format("recordings  {}, {}\n", format_count(recordings), format_duration(seconds));
  if (without_text > 0)
    text += fmt::format("left out    {} without a text\n", format_count(without_text));
  if (unused_texts > 0)
    text += fmt::format("not used    {} without a recording\n", counted(unused_texts, "text"));
  if (measured > 0) text += fmt::format("durations   {} measured\n", format_count(measured));
  const std::string name = fs::path(path).stem().string();
  const bool held = name.starts_with("val") || name.starts_with("dev") || name.starts_with("test");
  return text + fmt::format("written     {}\nin a deck   data.{} = [\"{}\"]", path,
                            held ? "val" : "train", path);
}

FolderManifestSummary write_folder_manifest(const std::vector<std::string>& paths,
                                            const std::string& out,
                                            const FolderManifestOptions& options) {
  const fs::path here = fs::absolute(out).lexically_normal().parent_path();
  FolderManifestSummary summary{.path = out};
  std::vector<std::string> silent, folders;
  std::int64_t empty = 0;
  std::string lines;
  for (const std::string& path : paths) {
    if (!fs::exists(path))
      throw DataError(
          fmt::format("no such folder: {}", path),
          advice_on_path(path,
                         "name folders with recordings and a text file beside each, or manifests"));
    if (fs::is_directory(path))
      folders.push_back(path);
    else
      lines += copied_lines(path, here, options, summary);
  }
  const Found found = files_below(folders);
  for (const auto& [stem, path] : found.recordings) {
    const auto text = found.texts.find(stem);
    if (text == found.texts.end() || text->second.empty()) {
      ++summary.without_text;
      empty += text != found.texts.end();
      if (silent.size() < kMostNamed) silent.push_back(path.string());
      continue;
    }
    const double seconds = seconds_of_recording(path);
    nlohmann::ordered_json line;
    line["audio_filepath"] = named_from(here, path);
    line["duration"] = seconds;
    line["text"] = options.lower_case ? lower_case(text->second) : text->second;
    lines += dumped(line) + "\n";
    ++summary.recordings;
    summary.seconds += seconds;
  }
  if (!silent.empty() && (!options.untexted || summary.recordings == 0))
    throw DataError(
        fmt::format("{} of {} recordings have no text{}, first {}", summary.without_text,
                    found.recordings.size(),
                    empty > 0 ? fmt::format(" ({} without a text file, {} with an empty one)",
                                            summary.without_text - empty, empty)
                              : "",
                    join(silent, ", ")),
        fmt::format(
            "the text of {} is expected in {}.txt; --allow-missing leaves such recordings "
            "out",
            silent.front(),
            (fs::path(silent.front()).parent_path() / fs::path(silent.front()).stem()).string()));
  for (const auto& [stem, text] : found.texts)
    summary.unused_texts += found.recordings.contains(stem) ? 0 : 1;
  std::error_code failed;
  fs::create_directories(here, failed);
  write_whole_file(out, lines);
  return summary;
}

}  // namespace choir
