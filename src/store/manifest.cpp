#include "src/store/manifest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <limits>
#include <map>
#include <random>
#include <unordered_set>

#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/store/directory.hpp"
#include "src/store/encoding.hpp"
#include "src/store/tensor_file.hpp"

namespace choir {
namespace {

/// The branch of every checkpoint whose manifest can be read and has the step of its name.
std::map<std::int64_t, Branch> known_branches(const CheckpointDirectory& folder) {
  std::map<std::int64_t, Branch> branches;
  for (const std::int64_t step : folder.steps()) {
    try {
      Manifest manifest =
          Manifest::parse(read_text_file(folder.final_path(step) + "/" + kManifestName));
      if (manifest.step == step) branches[step] = std::move(manifest.branch);
    } catch (const StorageError&) {
      continue;  // a load reports the reason
    }
  }
  return branches;
}

std::string why_abandoned(const Branch& branch, const std::string& path, const Branch& current) {
  const auto fork = std::ranges::find(current.forks, branch.id, &Branch::Fork::branch);
  return fmt::format(
      "it belongs to branch {}, which the run left{} for branch {}; checkpoint.resume={} continues "
      "from it",
      branch.id.empty() ? "(none)" : branch.id,
      fork == current.forks.end() ? "" : fmt::format(" after step {}", fork->step), current.id,
      path);
}

}  // namespace

bool Branch::includes(const std::string& branch, std::int64_t step) const {
  if (branch == id) return true;
  return std::ranges::any_of(
      forks, [&](const Fork& fork) { return fork.branch == branch && step <= fork.step; });
}

Branch begin_branch(const Manifest* parent, const CheckpointDirectory& folder) {
  std::random_device device;
  Branch branch;
  branch.id = fmt::format("{:08x}", device());
  branch.began = std::time(nullptr);
  if (parent != nullptr) {
    branch.forks = parent->branch.forks;
    branch.forks.push_back({parent->branch.id, parent->step});
    branch.began = std::max(branch.began, parent->branch.began + 1);
  }
  for (const auto& [step, known] : known_branches(folder))
    branch.began = std::max(branch.began, known.began + 1);
  return branch;
}

BranchSurvey survey_branches(const CheckpointDirectory& folder) {
  const std::map<std::int64_t, Branch> known = known_branches(folder);
  BranchSurvey survey;
  for (const auto& [step, branch] : known)
    if (branch.began >= survey.current.began) survey.current = branch;
  for (const std::int64_t step : folder.steps()) {
    const auto at = known.find(step);
    const bool abandoned = at != known.end() && !survey.current.includes(at->second.id, step);
    survey.steps.push_back(
        {step,
         abandoned ? why_abandoned(at->second, folder.final_path(step), survey.current) : ""});
  }
  return survey;
}

namespace {

using nlohmann::json;

constexpr const char* kFormatName = "choir-checkpoint";

std::string hex(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

std::uint32_t from_hex(const std::string& text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 8 || failed != std::errc() || stop != end)
    throw StorageError("'" + text + "' is not a checksum of 8 hexadecimal digits");
  return value;
}

/// The library would truncate fractions and wrap numbers that are too large.
std::int64_t whole(const json& value) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits) throw StorageError(dumped(value).substr(0, 40) + " is not a whole number");
  return value.get<std::int64_t>();
}

/// Replaces the library's own messages, which users would not understand.
const json& member(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end()) throw StorageError(fmt::format("it is malformed: no '{}'", key));
  return *found;
}

const std::string& text_of(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_string())
    throw StorageError(fmt::format("it is malformed: '{}' is not a text", key));
  return value.get_ref<const std::string&>();
}

const json& list_of(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_array())
    throw StorageError(fmt::format("it is malformed: '{}' is not a list", key));
  return value;
}

std::int64_t whole_of(const json& object, const char* key) {
  return whole(member(object, key));
}

std::uint32_t crc_of(const json& object, const char* key) {
  return from_hex(text_of(object, key));
}

DType dtype_named(const std::string& name) {
  try {
    return dtype_of(name);
  } catch (const Error&) {
    throw StorageError("'" + name.substr(0, 40) + "' is not an element type");
  }
}

json to_json(const TensorRecord& record) {
  json shape = json::array();
  for (int dim = 0; dim < record.shape.rank(); ++dim) shape.push_back(record.shape[dim]);
  return {{"name", record.name},     {"dtype", std::string(name_of(record.dtype))},
          {"shape", shape},          {"offset", record.offset},
          {"bytes", record.bytes()}, {"crc32c", hex(record.crc32c)}};
}

TensorRecord record_from(const json& entry, std::int64_t file_bytes) {
  TensorRecord record;
  record.name = text_of(entry, "name");
  record.dtype = dtype_named(text_of(entry, "dtype"));
  std::vector<std::int64_t> extents;
  for (const json& extent : list_of(entry, "shape")) extents.push_back(whole(extent));
  record.shape = checked_shape(extents, encoding_of(record.dtype), "tensor " + record.name);
  record.offset = whole_of(entry, "offset");
  record.crc32c = crc_of(entry, "crc32c");
  const auto bytes = whole_of(entry, "bytes");
  if (bytes != record.bytes() || record.offset < 0 || record.offset > file_bytes - bytes)
    throw StorageError(fmt::format("tensor {} of {} bytes at {} does not fit its shape or the file",
                                   record.name, bytes, record.offset));
  return record;
}

/// A text that is printed unchanged: no line ends and no control characters.
std::string printable(const json& object, const char* key) {
  constexpr std::size_t kLongest = 200;
  std::string text = text_of(object, key);
  if (text.size() > kLongest ||
      std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 127; }))
    throw StorageError(dumped(member(object, key)).substr(0, 40) + " is not a single line of text");
  return text;
}

/// Names are unique, and no byte of the file belongs to two tensors.
void require_apart(const Manifest& manifest) {
  std::unordered_set<std::string_view> names;
  const std::vector<TensorRecord> all = manifest.all_tensors();
  for (const TensorRecord& tensor : all)
    if (!names.insert(tensor.name).second)
      throw StorageError("two tensors have the name " + tensor.name);
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  if (!manifest.meta) return;
  const TextRecord& meta = *manifest.meta;
  if (meta.bytes < 0 || meta.bytes > kMostTextBytes || meta.offset < 0 ||
      std::none_of(regions.begin(), regions.end(), [&](const FileRegion& region) {
        return region.tensor < 0 && meta.offset >= region.offset && meta.bytes <= region.bytes &&
               meta.offset - region.offset <= region.bytes - meta.bytes;
      }))
    throw StorageError(fmt::format("its text of {} bytes at {} does not lie between the tensors",
                                   meta.bytes, meta.offset));
}

json to_json(const Branch& branch) {
  json forks = json::array();
  for (const Branch::Fork& fork : branch.forks)
    forks.push_back({{"branch", fork.branch}, {"step", fork.step}});
  return {{"id", branch.id}, {"began", branch.began}, {"forks", forks}};
}

Branch branch_from(const json& entry) {
  Branch branch{.id = printable(entry, "id"), .began = whole_of(entry, "began"), .forks = {}};
  constexpr std::int64_t kLatest = std::int64_t{1} << 40;  // seconds
  if (branch.began < 0 || branch.began > kLatest)
    throw StorageError(fmt::format("its branch began at {} s", branch.began));
  for (const json& fork : list_of(entry, "forks"))
    branch.forks.push_back({printable(fork, "branch"), whole_of(fork, "step")});
  return branch;
}

json to_json(const BaseFile& base) {
  json tensors = json::array();
  for (const TensorRecord& record : base.tensors) tensors.push_back(to_json(record));
  return {{"path", base.path},
          {"relative", base.relative},
          {"bytes", base.state_bytes},
          {"crc32c", hex(base.state_crc32c)},
          {"tensors", std::move(tensors)}};
}

/// A path that is printed unchanged.
std::string path_of(const json& object, const char* key) {
  constexpr std::size_t kLongest = 4096;
  std::string text = text_of(object, key);
  if (text.empty() || text.size() > kLongest ||
      std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 127; }))
    throw StorageError(dumped(member(object, key)).substr(0, 40) + " is not the path of a base");
  return text;
}

BaseFile base_from(const json& entry) {
  BaseFile base{.path = path_of(entry, "path"),
                .relative = path_of(entry, "relative"),
                .state_bytes = whole_of(entry, "bytes"),
                .state_crc32c = crc_of(entry, "crc32c"),
                .tensors = {}};
  for (const json& tensor : list_of(entry, "tensors"))
    base.tensors.push_back(record_from(tensor, base.state_bytes));
  return base;
}

Manifest manifest_from(const json& body) {
  if (text_of(body, "format") != kFormatName) throw StorageError("it is of another program");
  const std::int64_t version = whole_of(body, "format_version");
  if (version != kCheckpointFormat)
    throw StorageError(fmt::format("it has format version {}, but this program reads {}", version,
                                   kCheckpointFormat),
                       "load it with the version of choir that wrote it");
  Manifest manifest;
  manifest.step = whole_of(body, "step");
  if (manifest.step < 0) throw StorageError("it is of a negative step");
  manifest.saved_at = printable(body, "saved_at");
  manifest.deck_hash = printable(body, "deck_hash");
  manifest.layout = printable(body, "layout");
  if (const json& metric = member(body, "metric"); metric.is_number())
    manifest.metric = metric.get<double>();
  else if (!metric.is_null())
    throw StorageError("it is malformed: 'metric' is not a number");
  if (body.contains("branch")) manifest.branch = branch_from(member(body, "branch"));
  const json& files = list_of(body, "files");
  if (files.empty() || text_of(files.front(), "name") != kStateName)
    throw StorageError("it does not list " + std::string(kStateName));
  const json& state = files.front();
  manifest.state_bytes = whole_of(state, "bytes");
  if (manifest.state_bytes < 0) throw StorageError("it gives a file a negative size");
  manifest.state_crc32c = crc_of(state, "crc32c");
  manifest.structure_crc32c = crc_of(state, "structure_crc32c");
  if (state.contains("meta")) {
    const json& meta = state["meta"];
    manifest.meta = {whole_of(meta, "offset"), whole_of(meta, "bytes"), crc_of(meta, "crc32c")};
  }
  for (const json& entry : list_of(body, "tensors"))
    manifest.tensors.push_back(record_from(entry, manifest.state_bytes));
  if (body.contains("bases"))
    for (const json& entry : list_of(body, "bases")) manifest.bases.push_back(base_from(entry));
  require_apart(manifest);
  return manifest;
}

}  // namespace

std::string Manifest::to_text() const {
  json body = {{"format", kFormatName},  {"format_version", kCheckpointFormat},
               {"step", step},           {"saved_at", saved_at},
               {"deck_hash", deck_hash}, {"layout", layout},
               {"metric", nullptr},      {"tensors", json::array()}};
  if (metric) body["metric"] = *metric;
  if (!branch.id.empty()) body["branch"] = to_json(branch);
  body["files"] = json::array({{{"name", kStateName},
                                {"bytes", state_bytes},
                                {"crc32c", hex(state_crc32c)},
                                {"structure_crc32c", hex(structure_crc32c)}}});
  if (meta)
    body["files"][0]["meta"] = {
        {"offset", meta->offset}, {"bytes", meta->bytes}, {"crc32c", hex(meta->crc32c)}};
  for (const TensorRecord& record : tensors) body["tensors"].push_back(to_json(record));
  for (const BaseFile& base : bases) body["bases"].push_back(to_json(base));
  const std::string canonical = dumped(body);
  const std::uint32_t own = choir::crc32c(canonical.data(), canonical.size());
  const json all = {{"crc32c", hex(own)}, {"manifest", std::move(body)}};
  return dumped(all, 1) + "\n";
}

Manifest Manifest::parse(std::string_view text) {
  try {
    const json all = read_json(text, kManifestName);
    const json& body = member(all, "manifest");
    const std::string canonical = dumped(body);
    const std::uint32_t own = choir::crc32c(canonical.data(), canonical.size());
    if (own != crc_of(all, "crc32c")) throw StorageError("it does not match its own checksum");
    return manifest_from(body);
  } catch (const JsonError& error) {
    throw StorageError(
        fmt::format("line {}, column {}: {}{}", error.fault().line, error.fault().column,
                    error.fault().malformed ? "not valid JSON: " : "", error.fault().cause));
  } catch (const json::exception&) {
    throw StorageError("it is malformed: a text that is not UTF-8, or a number out of range");
  }
}

const TensorRecord* Manifest::find(std::string_view name) const {
  const auto find_in = [&](const std::vector<TensorRecord>& list) -> const TensorRecord* {
    const auto at = std::ranges::find(list, name, &TensorRecord::name);
    return at == list.end() ? nullptr : &*at;
  };
  const TensorRecord* found = find_in(tensors);
  for (const BaseFile& base : bases)
    if (found == nullptr) found = find_in(base.tensors);
  return found;
}

std::vector<TensorRecord> Manifest::all_tensors() const {
  std::vector<TensorRecord> all = tensors;
  for (const BaseFile& base : bases)
    all.insert(all.end(), base.tensors.begin(), base.tensors.end());
  return all;
}

std::vector<FileRegion> regions_of(const std::vector<TensorRecord>& tensors,
                                   std::int64_t file_bytes) {
  std::vector<FileRegion> used;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].bytes() > 0)
      used.push_back({tensors[i].offset, tensors[i].bytes(), static_cast<int>(i)});
  std::sort(used.begin(), used.end(),
            [](const FileRegion& a, const FileRegion& b) { return a.offset < b.offset; });
  std::vector<FileRegion> regions;
  std::int64_t reached = 0;
  for (const FileRegion& region : used) {
    if (region.offset < reached)
      throw StorageError("tensor " + tensors[static_cast<std::size_t>(region.tensor)].name +
                         " overlaps the one before it");
    if (region.offset > reached) regions.push_back({reached, region.offset - reached, -1});
    regions.push_back(region);
    reached = region.offset + region.bytes;
  }
  if (reached < file_bytes) regions.push_back({reached, file_bytes - reached, -1});
  return regions;
}

std::uint32_t crc_of_file(const std::vector<FileRegion>& regions,
                          const std::vector<std::uint32_t>& crcs) {
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < regions.size(); ++i)
    crc = crc32c_combine(crc, crcs[i], static_cast<std::uint64_t>(regions[i].bytes));
  return crc;
}

std::uint32_t crc_of_structure(const std::vector<FileRegion>& regions,
                               const std::vector<std::uint32_t>& crcs) {
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < regions.size(); ++i)
    if (regions[i].tensor < 0)
      crc = crc32c_combine(crc, crcs[i], static_cast<std::uint64_t>(regions[i].bytes));
  return crc;
}

}  // namespace choir
