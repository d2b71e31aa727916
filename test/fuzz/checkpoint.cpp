// Checkpoints. 'm': manifest.json, its checksum put right (the text is the part that it is of);
// 'M': the file as it is; 'h': bytes of state.h5 that are overwritten, records of u16 place and u8
// value. HDF5 is no library for hostile files: whatever of its part of the file is changed, the
// checkpoint must be refused before it is opened.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "choir/core/crc32c.hpp"
#include "choir/store/directory.hpp"
#include "choir/store/open.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/state_file.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

struct Saved {
  Manifest manifest;
  std::string state;
};

/// A checkpoint of two tensors of zeros, made once.
const Saved& saved() {
  static const Saved made = [] {
    const std::string path = put("state.h5", "");
    Saved s;
    s.manifest.tensors = lay_out_state_file(
        path, {7, "{\"deck\": {}}", {}, "", ""},
        {{"parameters/w", DType::f32, {3, 5}, {}}, {"state/step", DType::i64, {1}, {}}});
    s.state = read_bytes(path);
    s.manifest.step = 7;
    s.manifest.state_bytes = static_cast<std::int64_t>(s.state.size());
    for (TensorRecord& tensor : s.manifest.tensors)
      tensor.crc32c =
          crc32c(s.state.data() + tensor.offset, static_cast<std::size_t>(tensor.bytes()));
    const auto regions = regions_of(s.manifest.tensors, s.manifest.state_bytes);
    std::vector<std::uint32_t> crcs;
    for (const FileRegion& r : regions)
      crcs.push_back(crc32c(s.state.data() + r.offset, static_cast<std::size_t>(r.bytes)));
    s.manifest.state_crc32c = crc_of_file(regions, crcs);
    s.manifest.structure_crc32c = crc_of_structure(regions, crcs);
    return s;
  }();
  return made;
}

void try_manifest(std::string text, bool right) {
  if (right) {
    const auto body = nlohmann::json::parse(text, nullptr, false);
    if (body.is_discarded() || std::count(text.begin(), text.end(), '[') > 60) return;
    const std::string canonical = body.dump();
    text = fmt::format("{{\"crc32c\": \"{:08x}\", \"manifest\": {}}}",
                       crc32c(canonical.data(), canonical.size()), canonical);
  }
  const Manifest manifest = Manifest::parse(text);
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  std::int64_t reached = 0;
  for (const FileRegion& region : regions) {
    require(region.offset == reached && region.bytes > 0, "regions with holes");
    reached += region.bytes;
  }
  require(reached == manifest.state_bytes, "regions that do not fill the file");
  require(Manifest::parse(manifest.to_text()).to_text() == manifest.to_text(), "another manifest");
}

void try_state(std::string_view edits) {
  std::string state = saved().state;
  for (std::size_t at = 0; at + 3 <= edits.size(); at += 3) {
    const std::size_t place = static_cast<unsigned char>(edits[at]) |
                              std::size_t{static_cast<unsigned char>(edits[at + 1])} << 8;
    state[place % state.size()] = edits[at + 2];
  }
  put("step_00000007/state.h5", state);
  const std::string path = put("step_00000007/manifest.json", saved().manifest.to_text());
  const auto world = make_null_communicator("world", 0, 1);
  const bool taken = accepted(
      [&] { open_checkpoint(std::filesystem::path(path).parent_path(), *world, Verify::sizes); });
  bool same = true;
  for (const FileRegion& r : regions_of(saved().manifest.tensors, saved().manifest.state_bytes))
    same = same && (r.tensor >= 0 || state.compare(static_cast<std::size_t>(r.offset),
                                                   static_cast<std::size_t>(r.bytes), saved().state,
                                                   static_cast<std::size_t>(r.offset),
                                                   static_cast<std::size_t>(r.bytes)) == 0);
  require(taken == same, "HDF5 has opened what was not written by it, or not what was");
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string text = saved().manifest.to_text();
  const auto body = nlohmann::json::parse(text).at("manifest");
  return {"m" + body.dump(), "M" + text, "h", std::string("h\x08\x00\xff", 4),
          std::string("h\x60\x02\x01\x00\x08\x01", 7)};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  if (kind == 'h') return try_state(input.substr(1));
  accepted([&] { try_manifest(std::string(input.substr(1)), kind == 'm'); });
}

}  // namespace choir::fuzz
