#include "src/data/audio/audio_manifest.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/manifest_lines.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

struct Pattern {
  std::size_t begin = 0, end = 0;  // range of the whole pattern in the name
  std::string first, last;
};

// The first "_OP_a..b_CL_" or "{a..b}" of a name.
std::optional<Pattern> find_pattern(const std::string& name) {
  for (const auto& [open, close] : {std::pair<std::string, std::string>{"_OP_", "_CL_"},
                                    std::pair<std::string, std::string>{"{", "}"}}) {
    const std::size_t begin = name.find(open);
    if (begin == std::string::npos) continue;
    const std::size_t end = name.find(close, begin + open.size());
    if (end == std::string::npos) continue;
    const std::string inside = name.substr(begin + open.size(), end - begin - open.size());
    const std::size_t dots = inside.find("..");
    if (dots == std::string::npos) continue;
    Pattern found{begin, end + close.size(), inside.substr(0, dots), inside.substr(dots + 2)};
    const auto digits = [](const std::string& text) {
      return !text.empty() && text.size() < 10 &&
             text.find_first_not_of("0123456789") == std::string::npos;
    };
    if (digits(found.first) && digits(found.last)) return found;
  }
  return std::nullopt;
}

// Reads the lines of manifests; all kinds share the format of their lines and differ in the
// ManifestPlace.
class Reader {
 public:
  Reader(const ManifestOptions& options, AudioManifest& manifest)
      : options_(options), manifest_(manifest) {}

  void read(const std::string& path, ManifestPlace place) {
    LineReader lines(path);
    const std::size_t before = manifest_.entries.size() + manifest_.left_out.size();
    std::string line;
    of_id_.clear();
    while (lines.next(line)) {
      if (trim(line).empty()) continue;
      place.place = lines.place();
      read_line(line, place);
    }
    if (manifest_.entries.size() + manifest_.left_out.size() == before)
      throw DataError(fmt::format("manifest '{}' is empty", path),
                      "it needs one line per utterance");
  }

 private:
  void read_line(const std::string& line, ManifestPlace& place) {
    ManifestJson json;
    try {
      json = manifest_json(line);
      if (!json.is_object()) throw AudioError(AudioFault::bad_line, "not a JSON object");
      if (json.contains("audio_filepath")) {
        add_nemo_line(json, place, manifest_);
      } else if (json.contains("recording") || json.contains("supervisions") ||
                 json.contains("type")) {
        if (!place.shar.empty()) place.occurrence = of_id_[string_of(json, "id")]++;
        add_cut(json, place, options_.trim_to_supervisions, manifest_);
      } else {
        throw AudioError(AudioFault::bad_line,
                         "neither a line of NeMo (no \"audio_filepath\") nor a cut of Lhotse (no "
                         "\"recording\")");
      }
    } catch (const AudioError& error) {
      const bool named = json.is_object() && json.contains("id") && json["id"].is_string();
      const bool timed =
          json.is_object() && json.contains("duration") && json["duration"].is_number();
      const double duration = timed ? json["duration"].get<double>() : 0;
      manifest_.left_out.push_back({.place = place.place,
                                    .id = named ? json["id"].get<std::string>() : "",
                                    .reason = std::string(name_of(error.fault())),
                                    .detail = error.what(),
                                    .hint = error.hint(),
                                    .duration = duration > 0 ? duration : 0,
                                    .bad = true});
    }
  }

  const ManifestOptions& options_;
  AudioManifest& manifest_;
  std::map<std::string, int> of_id_;  // number of cuts per id so far in the Shar archive
};

std::string folder_of(const std::string& path) {
  return fs::path(path).parent_path().string();
}

void read_shar(const std::string& folder, Reader& reader) {
  const std::vector<SharPart> parts = shar_parts(folder);
  if (parts.empty())
    throw DataError(
        fmt::format("folder '{}' is not a Lhotse Shar (no cuts.000000.jsonl.gz)", folder),
        "name the manifests in it instead");
  for (const SharPart& part : parts) {
    ManifestPlace place;
    place.folder = folder;
    place.shar = fmt::format("{}/recording.{}.tar", folder, part.number);
    if (!fs::exists(place.shar))
      throw DataError(
          fmt::format("'{}' has no recordings: '{}' does not exist", part.cuts, place.shar),
          "each cuts.NNNNNN.jsonl.gz needs a recording.NNNNNN.tar");
    reader.read(part.cuts, place);
  }
}

// Derives the pattern of the tars from a manifest whose name is a pattern.
std::string tars_beside(const std::string& manifest) {
  const fs::path path(manifest);
  std::string name = path.filename();
  if (const auto at = name.find("manifest"); at != std::string::npos) name.replace(at, 8, "audio");
  const auto dot = name.rfind(".json");
  if (dot != std::string::npos) name.replace(dot, std::string::npos, ".tar");
  return path.has_parent_path() ? (path.parent_path() / name).string() : name;
}

void read_tarred(const std::string& argument, const std::string& tar_pattern, Reader& reader) {
  const auto manifests = expand_shard_pattern(argument);
  std::vector<std::int64_t> numbers;
  const auto tars = expand_shard_pattern(tar_pattern, &numbers);
  if (manifests.size() != 1 && manifests.size() != tars.size())
    throw DataError(fmt::format("'{}' names {} manifests, '{}' {} tars", argument, manifests.size(),
                                tar_pattern, tars.size()),
                    "each manifest needs its own tar");
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    ManifestPlace place;
    place.folder = folder_of(manifests[i]);
    if (manifests.size() == tars.size()) {
      place.tar = [&, i](std::int64_t) { return tars[i]; };
    } else {
      place.tar = [&](std::int64_t shard) {
        const auto at = std::find(numbers.begin(), numbers.end(), shard);
        if (at == numbers.end())
          throw AudioError(AudioFault::bad_line,
                           shard < 0 ? "it has no \"shard_id\" to say which tar has its audio"
                                     : fmt::format("\"shard_id\" {} is none of the tars '{}'",
                                                   shard, tar_pattern));
        return tars[static_cast<std::size_t>(at - numbers.begin())];
      };
    }
    reader.read(manifests[i], place);
  }
}

void read_plain(const std::string& path, Reader& reader) {
  ManifestPlace place;
  place.folder = folder_of(path);
  // One manifest for all tars of a set, which NeMo calls audio_0.tar, ...
  place.tar = [folder = place.folder](std::int64_t shard) -> std::string {
    if (shard < 0) return {};
    const fs::path tar = fs::path(folder) / fmt::format("audio_{}.tar", shard);
    return fs::exists(tar) ? tar.string() : std::string();
  };
  reader.read(path, place);
}

}  // namespace

std::vector<std::string> expand_shard_pattern(const std::string& pattern,
                                              std::vector<std::int64_t>* numbers) {
  const auto found = find_pattern(pattern);
  if (!found) {
    if (numbers != nullptr) numbers->push_back(0);
    return {pattern};
  }
  const std::int64_t first = std::stoll(found->first), last = std::stoll(found->last);
  constexpr std::int64_t kMost = 1000000;
  if (last < first || last - first >= kMost)
    throw DataError(fmt::format("'{}' counts from {} to {}", pattern, first, last));
  const bool padded = found->first.size() > 1 && found->first.front() == '0';
  std::vector<std::string> names;
  for (std::int64_t i = first; i <= last; ++i) {
    const std::string number = fmt::format("{:0{}}", i, padded ? found->first.size() : 1);
    const auto rest = expand_shard_pattern(
        pattern.substr(0, found->begin) + number + pattern.substr(found->end), nullptr);
    // Several patterns in one name multiply, so the product is bounded.
    if (std::ssize(names) + std::ssize(rest) > kMost)
      throw DataError(fmt::format("'{}' names more than {} files", pattern, kMost));
    for (const auto& name : rest) {
      names.push_back(name);
      if (numbers != nullptr) numbers->push_back(i);
    }
  }
  return names;
}

std::vector<SharPart> shar_parts(const std::string& folder) {
  std::vector<SharPart> parts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("cuts.") && (name.ends_with(".jsonl.gz") || name.ends_with(".jsonl")))
      parts.push_back({folder + "/" + name, name.substr(5, name.find('.', 5) - 5)});
  }
  std::sort(parts.begin(), parts.end(),
            [](const SharPart& a, const SharPart& b) { return a.cuts < b.cuts; });
  return parts;
}

AudioManifest read_audio_manifests(const std::vector<std::string>& paths,
                                   const ManifestOptions& options) {
  if (!options.tars.empty() && options.tars.size() != paths.size())
    throw DeckError(
        fmt::format("{} manifests and {} patterns of tars", paths.size(), options.tars.size()),
        "give --tars once per manifest, in the same order");
  AudioManifest manifest;
  Reader reader(options, manifest);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!options.tars.empty())
      read_tarred(paths[i], options.tars[i], reader);
    else if (fs::is_directory(paths[i]))
      read_shar(paths[i], reader);
    else if (find_pattern(paths[i]))
      read_tarred(paths[i], tars_beside(paths[i]), reader);
    else
      read_plain(paths[i], reader);
  }
  return manifest;
}

}  // namespace choir
