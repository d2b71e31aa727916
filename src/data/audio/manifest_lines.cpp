#include "src/data/audio/manifest_lines.hpp"

#include <cmath>
#include <filesystem>
#include <limits>

#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"
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

bool truthy(const ManifestJson& json, const char* key) {
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0;
  bad_line(fmt::format("\"{}\" is neither true nor false", key));
}

}  // namespace

ManifestJson manifest_json(const std::string& line) {
  try {
    return read_ordered_json_line(line, "");
  } catch (const JsonError& error) {
    const JsonFault& fault = error.fault();
    const bool encoding = fault.cause.find("not UTF-8") != std::string::npos;
    throw AudioError(!fault.malformed ? AudioFault::bad_line
                     : encoding       ? AudioFault::not_utf8
                                      : AudioFault::not_json,
                     fmt::format("column {}: {}", fault.column, fault.cause));
  }
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
  if (!std::isfinite(offset) || offset < 0)
    bad_line(fmt::format("an offset of {} seconds", offset));
  if (!std::isfinite(duration) || duration < 0)
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
  const std::string file = string_of(json, "audio_filepath");
  if (file.empty()) bad_line("it has no \"audio_filepath\"");
  const auto named = json.find("id");
  entry.offset = number_of(json, "offset", 0);
  entry.whole = !json.contains("offset") || json["offset"].is_null();
  entry.id = named != json.end() && named->is_string() ? named->get<std::string>()
             : entry.whole                             ? file
                                                       : fmt::format("{}@{}", file, entry.offset);
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
  if (!json.contains("duration")) bad_line("it has no \"duration\"");
  check_times(entry.offset, entry.duration);
  entry.rate = small_of(json, "sampling_rate", 0);
  const std::int64_t shard = integer_of(json, "shard_id", -1);
  const std::string tar = place.tar ? place.tar(shard) : std::string();
  if (tar.empty()) {
    entry.path = resolve_audio_path(place.folder, file);
  } else {
    entry.path = tar;
    entry.member = file.starts_with("./") ? file.substr(2) : file;
  }
  ManifestJson rest = json;
  for (const char* said : {"id", "text", "duration", "lang"}) rest.erase(said);
  describe_entry(entry, string_of(json, "text"), string_of(json, "lang"), rest, manifest);
  manifest.entries.push_back(std::move(entry));
}

}  // namespace choir
