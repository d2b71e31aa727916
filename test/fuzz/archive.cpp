// Fuzzes tar archives in the work of `choir prepare audio` on one unit: the input is the archive,
// and the utterances ask for members by several names. For any contents the output folder gets the
// shard and its part, and the folders above it get nothing.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <set>

#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/audio/waveform.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

struct Member {
  std::string name, bytes;
  char type = '0';
  std::string link = {};
};

std::string tar_of(const std::vector<Member>& members) {
  std::string tar;
  for (const Member& m : members) {
    std::string head(512, '\0');
    const auto field = [&](std::size_t at, const std::string& text) {
      text.copy(head.data() + at, text.size());
    };
    field(0, m.name), field(100, "0000644"), field(108, "0000000"), field(116, "0000000");
    field(124, fmt::format("{:011o}", m.bytes.size())), field(136, "00000000000");
    field(148, "        "), field(157, m.link), field(257, std::string("ustar\00000", 8));
    head[156] = m.type;
    unsigned sum = 0;
    for (const char c : head) sum += static_cast<unsigned char>(c);
    field(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
    tar += head + m.bytes + std::string((512 - m.bytes.size() % 512) % 512, '\0');
  }
  return tar + std::string(1024, '\0');
}

/// Corrects the checksums of apparent headers, so that the code behind the check is reached.
void put_sums(std::string& tar) {
  for (std::size_t at = 0; at + 512 <= tar.size(); at += 512) {
    if (tar.compare(at + 257, 5, "ustar") != 0) continue;
    std::string("        ").copy(tar.data() + at + 148, 8);
    unsigned sum = 0;
    for (std::size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(tar[i]);
    (fmt::format("{:06o}", sum) + std::string("\0 ", 2)).copy(tar.data() + at + 148, 8);
  }
}

std::string compressed(const std::string& tar, int (*filter)(archive*)) {
  std::string bytes(tar.size() + 4096, '\0');
  std::size_t used = 0;
  archive* handle = archive_write_new();
  archive_write_set_format_raw(handle);
  filter(handle);
  archive_write_open_memory(handle, bytes.data(), bytes.size(), &used);
  archive_entry* entry = archive_entry_new();
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_write_header(handle, entry);
  archive_write_data(handle, tar.data(), tar.size());
  archive_entry_free(entry);
  archive_write_free(handle);
  return bytes.substr(0, used);
}

std::string wav(int samples) {
  return wav_header(16000, samples) + std::string(static_cast<std::size_t>(2 * samples), '\3');
}

AudioEntry entry_of(const std::string& tar, const std::string& member) {
  AudioEntry entry;
  entry.place = "m.json:1", entry.id = member, entry.path = tar, entry.member = member;
  entry.duration = 0.01, entry.whole = true;
  entry.before = "{\"id\":\"x\",\"duration\":", entry.after = "}";
  return entry;
}

std::set<std::string> all_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch()))
    names.insert(entry.path().lexically_relative(scratch()));
  return names;
}

// A member with an absolute name; a seed holds it, so it is the same in every process.
std::string absolute_name() {
  return (std::filesystem::temp_directory_path() / "choir_fuzz_absolute").string();
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string sparse = "30 size=1099511627776\n22 GNU.sparse.major=1\n";
  const std::string plain = tar_of({{"a.wav", wav(160)}, {"./b.wav", wav(160)}});
  const std::string zeros(std::size_t{1} << 20, '\0');
  return {
      plain,
      compressed(plain, archive_write_add_filter_gzip),
      compressed(compressed(plain, archive_write_add_filter_gzip), archive_write_add_filter_xz),
      compressed(tar_of({{"a.wav", zeros}}), archive_write_add_filter_zstd),
      tar_of({{"../../x", wav(160)}, {absolute_name(), wav(160)}, {"a.wav", wav(99)}}),
      tar_of(
          {{"a.wav", "", '2', "../../../etc/passwd"}, {"b.wav", "", '1', "a.wav"}, {"d", "", '5'}}),
      tar_of(
          {{"c.json", "{}"}, {"c.flac", "fLaC"}, {"PaxHeader", sparse, 'x'}, {"a.wav", wav(160)}})};
}

void try_input(std::string_view input) {
  std::string bytes(input);
  put_sums(bytes);
  const std::string tar = put("in/a.tar", bytes), out = scratch() + "/in/out";
  std::filesystem::remove_all(out);
  std::filesystem::create_directories(out);
  AudioUnit unit;
  for (const std::string& member :
       {std::string("a.wav"), std::string("b.wav"), std::string("../../x"), absolute_name(),
        std::string("a-sub1.wav")})
    unit.entries.push_back(entry_of(tar, member));
  unit.entries.push_back(entry_of(tar, "c"));
  unit.entries.back().by_stem = true;
  accepted([&] {
    const UnitResult result = run_audio_unit(
        unit, {.sample_rate = 16000, .channel = {}, .stop_on_bad = false}, out, [](double) {});
    require(result.utterances.size() + result.left_out.size() == unit.entries.size(),
            "an utterance is lost");
    require(read_unit_part(out, 0).has_value(), "a part that cannot be read");
  });
  static const std::set<std::string> legal{"in", "in/a.tar", "in/out", "in/out/audio_00000.pcm",
                                           "in/out/audio_00000.part"};
  for (const std::string& name : all_files()) require(legal.contains(name), name.c_str());
  require(!std::filesystem::exists(absolute_name()), "a member with an absolute name");
}

}  // namespace choir::fuzz
