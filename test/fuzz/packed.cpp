// Fuzzes folders of packed speech: 'i' index.bin, 's' a shard, 'l' a label file, 'p' the files of
// an unfinished run. Checksums are corrected, so that the code behind the check is reached ('I',
// 'L': they are not).
#include "src/core/hash.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/speech/label_file.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

constexpr const char* kLines = "{\"text\":\"a\"}\n{\"text\":\"bc\"}\n";

void put_crc(std::string& bytes, std::size_t at, std::size_t from, std::size_t count) {
  const std::uint32_t crc = crc32c(bytes.data() + from, count);
  std::memcpy(bytes.data() + at, &crc, sizeof crc);
}

void try_index(std::string bytes, bool right) {
  if (right && bytes.size() > 4) put_crc(bytes, bytes.size() - 4, 0, bytes.size() - 4);
  put("packed/manifest.jsonl", kLines);
  put("packed/index.bin", bytes);
  const AudioCatalog catalog = AudioCatalog::open(scratch() + "/packed");
  require(catalog.hours() >= 0, "hours below 0");
  for (std::int64_t i = 0; i < catalog.size(); ++i)
    accepted([&] { require(catalog.text(i).size() < 100, "a text from elsewhere"); });
  require(AudioCatalog::deserialise(catalog.serialise()).size() == catalog.size(),
          "lost on its way");
}

void try_labels(std::string bytes, bool right) {
  if (right && bytes.size() >= 64) {
    put_crc(bytes, 56, 64, bytes.size() - 64);
    put_crc(bytes, 60, 0, 60);
  }
  put("packed/labels.f.bin", bytes);
  const LabelFile labels = LabelFile::open(scratch() + "/packed", "f", 3);
  std::size_t ids = 0;
  for (std::int64_t i = 0; i < labels.size(); ++i) ids += labels[i].size();
  require(ids <= bytes.size(), "more ids than bytes");
  require(LabelFile::deserialise(labels.serialise()).size() == labels.size(), "lost on its way");
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string folder = scratch() + "/packed";
  std::filesystem::create_directories(folder);
  AudioShardWriter writer(audio_shard_path(folder, 0), 16000);
  const std::vector<std::int16_t> samples(50, 7);
  const auto place = writer.append(samples);
  const auto second = writer.append(samples);
  const AudioShardHeader header = writer.finish();
  const std::vector<AudioCatalog::Utterance> index{{0, place.crc, place.first, 50, 0, 12, 1},
                                                   {0, second.crc, second.first, 50, 13, 13, 2}};
  AudioCatalog::write(folder, 16000, 1, index, 27, 0);
  LabelFile::write(folder, "f", 3, 7, 40, {{1, 2, 39}, {}, {5}}, {false, true, false});
  UnitResult result;
  result.shard_samples = header.samples, result.payload_crc = header.payload_crc;
  result.utterances = index, result.lines = kLines, result.clipped = {"a"};
  result.left_out.push_back({"m:1", "b", "empty file", "'b' is empty", "", 1.5, true});
  write_unit_part(result, folder, 0);
  const std::string labels = read_bytes(folder + "/labels.f.bin");
  return {"i" + read_bytes(folder + "/index.bin"),
          "I" + read_bytes(folder + "/index.bin"),
          "s" + read_bytes(audio_shard_path(folder, 0)),
          "l" + labels,
          "L" + labels,
          "p" + read_bytes(unit_part_path(folder, 0))};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  std::string bytes(input.substr(1));
  accepted([&] {
    if (kind == 'i' || kind == 'I') try_index(std::move(bytes), kind == 'i');
    if (kind == 'l' || kind == 'L') try_labels(std::move(bytes), kind == 'l');
    if (kind == 's') read_audio_shard_header(put("packed/audio_00001.pcm", bytes));
    if (kind == 'p') {
      if (bytes.size() > 4) put_crc(bytes, bytes.size() - 4, 0, bytes.size() - 4);
      put("packed/audio_00002.part", bytes);
      read_unit_part(scratch() + "/packed", 2);
    }
  });
}

}  // namespace choir::fuzz
