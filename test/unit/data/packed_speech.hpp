#pragma once
// Folders of packed speech in which a formula gives every sample and label.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "src/data/audio/packed_audio.hpp"
#include "src/data/sampling/blend.hpp"
#include "src/data/sampling/buckets.hpp"
#include "src/data/speech/label_file.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir::test {

inline constexpr SpeechFrames kPackedFrames{10, 2, false};

struct PackedSpeech {
  std::string folder;
  int number = 0;  ///< makes the samples of different folders different
  std::int64_t utterances = 40;
  int shards = 3;
  int sample_rate = 1000;
  std::uint64_t tokenizer_hash = 77;
  std::vector<std::int64_t> bad;      ///< text outside the vocabulary
  std::vector<std::int64_t> crowded;  ///< more labels than frames

  // Durations between 0.7 and 3.2 s.
  std::int64_t samples(std::int64_t u) const { return 700 + (u * 977 + number * 131) % 2500; }
  std::int16_t sample(std::int64_t u, std::int64_t i) const {
    return static_cast<std::int16_t>((u * 7919 + i * 31 + number * 101 + 1) % 60000 - 30000);
  }
  std::vector<std::int32_t> labels(std::int64_t u) const {
    const bool many = std::find(crowded.begin(), crowded.end(), u) != crowded.end();
    std::vector<std::int32_t> ids(static_cast<std::size_t>(many ? 400 : 1 + u % 7));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>((static_cast<std::size_t>(u) + i) % 9);
    return ids;
  }
  std::string text(std::int64_t u) const { return "what was said in " + std::to_string(u); }

  /// Writes audio, index, manifest and labels.test.bin.
  void write() const {
    std::filesystem::create_directories(folder);
    std::string manifest;
    std::vector<AudioCatalog::Utterance> index;
    for (int shard = 0; shard < shards; ++shard) {
      AudioShardWriter writer(audio_shard_path(folder, shard), sample_rate);
      for (std::int64_t u = utterances * shard / shards; u < utterances * (shard + 1) / shards;
           ++u) {
        std::vector<std::int16_t> pcm(static_cast<std::size_t>(samples(u)));
        for (std::size_t i = 0; i < pcm.size(); ++i)
          pcm[i] = sample(u, static_cast<std::int64_t>(i));
        const auto place = writer.append(pcm);
        const std::string line = R"({"text":")" + text(u) + "\"}";
        AudioCatalog::Utterance record;
        record.shard = shard;
        record.crc = place.crc;
        record.first = place.first;
        record.samples = samples(u);
        record.line = static_cast<std::int64_t>(manifest.size());
        record.line_bytes = static_cast<std::int32_t>(line.size());
        index.push_back(record);
        manifest += line + "\n";
      }
      writer.finish();
    }
    write_bytes(folder + "/manifest.jsonl", manifest);
    AudioCatalog::write(folder, sample_rate, shards, index,
                        static_cast<std::int64_t>(manifest.size()), 0);
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<bool> is_bad(static_cast<std::size_t>(utterances), false);
    for (const std::int64_t u : bad) is_bad[static_cast<std::size_t>(u)] = true;
    for (std::int64_t u = 0; u < utterances; ++u)
      ids.push_back(is_bad[static_cast<std::size_t>(u)] ? std::vector<std::int32_t>{} : labels(u));
    LabelFile::write(folder, "test", AudioCatalog::open(folder).hash(), tokenizer_hash, 9, ids,
                     is_bad);
  }
  /// Flips a bit in the middle of an utterance in the file.
  void damage(std::int64_t u) const {
    const auto record = AudioCatalog::open(folder)[u];
    const std::string path = audio_shard_path(folder, record.shard);
    std::string bytes = read_bytes(path);
    bytes[static_cast<std::size_t>(AudioCatalog::kHeaderBytes + 2 * record.first +
                                   record.samples)] ^= 4;
    write_bytes(path, bytes);
  }
};

}  // namespace choir::test
