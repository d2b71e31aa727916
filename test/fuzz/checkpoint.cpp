// Fuzzes checkpoints. Their checksums are corrected after every change, so that the changes reach
// the code behind the check. 'm': the body of manifest.json, beside a state.h5 of the size that it
// gives; 'M': manifest.json unchanged; 'h': bytes of state.h5 that are overwritten, records of u16
// position and u8 value; 'o': the same under a manifest of an older program, which does not give
// the position of the text; 't': that text. Every accepted checkpoint is loaded, and must equal the
// file at the offsets of the manifest.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/comm/null_communicator.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/directory.hpp"
#include "src/store/open.hpp"
#include "src/store/state_file.hpp"
#include "test/fuzz/fuzz.hpp"
#include "test/support/sealed_checkpoint.hpp"

namespace choir::fuzz {
namespace {

constexpr const char* kText =
    R"({"deck": {"run": {"seed": 7}}, "vocab_size": 3, "data": [1], "provenance": {"hosts": 1}})";
constexpr std::size_t kMostBytes = 1 << 17;

struct Saved {
  Manifest manifest;
  std::string state;
};

/// A checkpoint of three tensors of zeros, written once.
const Saved& saved() {
  static const Saved made = [] {
    const std::string path = put("state.h5", "");
    Saved s;
    s.manifest.tensors = lay_out_state_file(path, {7, kText, {}, "", ""},
                                            {{"parameters/w", DType::f32, {3, 5}, {}},
                                             {"optimizer/m/w", DType::bf16, {3, 5}, {}},
                                             {"state/step", DType::i64, {1}, {}}});
    s.state = read_bytes(path);
    s.manifest.step = 7;
    s.manifest.state_bytes = static_cast<std::int64_t>(s.state.size());
    s.manifest.meta = locate_meta(File(path, File::Mode::read),
                                  regions_of(s.manifest.tensors, s.manifest.state_bytes), kText);
    test::seal(s.manifest, s.state);
    return s;
  }();
  return made;
}

/// Every tensor that the manifest has.
void load_all(const Checkpoint& found, const std::string& state, Communicator& world) {
  std::vector<StoredTensor> tensors;
  std::vector<std::string> memory;
  for (const TensorRecord& record : found.manifest.tensors) {
    memory.emplace_back(static_cast<std::size_t>(record.bytes()), 'x');
    tensors.push_back({record.name,
                       record.dtype,
                       record.shape,
                       {{0, record.shape.count(), memory.back().data()}}});
  }
  load_checkpoint(found, tensors, world);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    require(state.compare(static_cast<std::size_t>(found.manifest.tensors[i].offset),
                          memory[i].size(), memory[i]) == 0,
            "other bytes than those of the manifest's offset");
}

/// True if it was accepted and loaded.
bool try_checkpoint(Manifest manifest, const std::string& state) {
  test::seal(manifest, state);
  put("step_00000007/state.h5", state);
  const std::string path = put("step_00000007/manifest.json", manifest.to_text());
  const auto world = make_null_communicator("world", 0, 1);
  return accepted([&] {
    const Checkpoint found =
        open_checkpoint(std::filesystem::path(path).parent_path(), *world, Verify::checksums);
    require(state.find(found.json) != std::string::npos, "a text that is not in the file");
    load_all(found, state, *world);
  });
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
  if (!right || static_cast<std::size_t>(manifest.state_bytes) > kMostBytes) return;
  std::string state = saved().state;
  state.resize(static_cast<std::size_t>(manifest.state_bytes), '\x5a');
  require(try_checkpoint(manifest, state) || !manifest.meta,
          "a manifest that is right, and its file was refused");
}

void try_state(std::string_view edits, bool old) {
  std::string state = saved().state;
  for (std::size_t at = 0; at + 3 <= edits.size(); at += 3) {
    const std::size_t place = static_cast<unsigned char>(edits[at]) |
                              std::size_t{static_cast<unsigned char>(edits[at + 1])} << 8;
    state[place % state.size()] = edits[at + 2];
  }
  Manifest manifest = saved().manifest;
  if (old) manifest.meta.reset();
  require(try_checkpoint(manifest, state) || old, "HDF5's own bytes were asked for something");
}

/// Reads the text like other parts of the program.
void try_text(std::string_view text) {
  const TrainMeta meta = TrainMeta::parse(std::string(text), "step_00000007");
  require(TrainMeta::parse(meta.to_json(), "again").to_json() == meta.to_json(), "another text");
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string text = saved().manifest.to_text();
  auto body = nlohmann::json::parse(text).at("manifest");
  const std::string with = body.dump();
  body["files"][0].erase("meta");
  const auto edit = [](std::size_t place, char value) {
    return std::string{static_cast<char>(place & 0xff), static_cast<char>(place >> 8), value};
  };
  // The header of the attribute begins 26 bytes before its text.
  const auto header = static_cast<std::size_t>(saved().manifest.meta->offset) - 26;
  return {"m" + with,
          "m" + body.dump(),
          "M" + text,
          "h",
          "h" + edit(8, '\xff'),
          "h" + edit(0x260, 1) + edit(0x800, 1),
          "o",
          "o" + edit(header, 1),
          "o" + edit(header + 4, 0) + edit(header + 18, '\xff'),
          "o" + edit(header + 21, '\x7f'),
          std::string("t") + kText};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  input.remove_prefix(1);
  if (kind == 'h' || kind == 'o') return try_state(input, kind == 'o');
  accepted([&] {
    if (kind == 't')
      try_text(input);
    else
      try_manifest(std::string(input), kind == 'm');
  });
}

}  // namespace choir::fuzz
