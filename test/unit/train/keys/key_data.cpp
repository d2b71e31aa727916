#include "test/unit/train/keys/key_data.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/data/chat/prepare_chat.hpp"
#include "src/data/corpora/corpus_preparation.hpp"
#include "src/data/dialogues/prepare_codes.hpp"
#include "src/data/dialogues/prepare_dialogues.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "test/support/wav_file.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir::test {
namespace {

namespace fs = std::filesystem;

constexpr int kRate = 16000;
constexpr double kFrame = 0.08;  // seconds per frame of dialogues

void write_text(const std::string& path, int first) {
  std::string text;
  for (int i = first; i < first + 400; ++i)
    text += fmt::format("line {} says {} or {}.\n", i, (i * 7919) % 1000, (i * 104729) % 977);
  write_bytes(path, text);
}

double seconds_of(int i) {
  return 0.5 + 0.13 * (i % 9);
}

std::string words_of(int i) {
  const char* const words[] = {"one", "two", "three", "four", "five", "six", "seven"};
  std::string text = words[i % 7];
  for (int k = 0; k < i % 3; ++k) text += std::string(" ") + words[(i + 3 * k) % 7];
  return text;
}

/// Writes recordings first ... last - 1; returns their manifest.
std::string write_speech(const std::string& folder, int first, int last, double scale = 1) {
  std::string lines;
  for (int i = first; i < last; ++i) {
    const std::string wav = fmt::format("{}/{}.wav", folder, i);
    fs::create_directories(folder);
    write_wav(wav, kRate, 1, tones(kRate, scale * seconds_of(i), i));
    lines += fmt::format(R"({{"audio_filepath":"{}","duration":{:.3f},"text":"{}"}})", wav,
                         scale * seconds_of(i), scale < 1 ? "a" : words_of(i)) +
             "\n";
  }
  write_bytes(folder + ".json", lines);
  return folder + ".json";
}

void write_chat(Communicator& alone, Logger& log, const std::string& folder,
                const std::string& sound, int first, int last) {
  std::string lines;
  for (int i = first; i < last; ++i)
    lines +=
        fmt::format(R"({{"conversations":[{{"from":"User","type":"text","value":"what is this?"}},)"
                    R"({{"from":"User","type":"audio","value":"{}/{}.wav","duration":{:.2f}}},)"
                    R"({{"from":"Assistant","type":"text","value":"{}"}}]}})",
                    sound, i, seconds_of(i), words_of(i)) +
        "\n";
  write_bytes(folder + ".jsonl", lines);
  prepare_chat(alone, log, {folder + ".jsonl"}, folder, {});
}

/// `units`: see PrepareDialoguesOptions; returns the units of the folder.
std::string write_dialogues(Communicator& alone, Logger& log, const std::string& folder,
                            const std::string& units, int first, int last) {
  std::string lines;
  for (int i = first; i < last; ++i) {
    const double seconds = kFrame * (20 + 3 * (i % 4));
    for (const char* side : {"user", "agent"}) {
      fs::create_directories(folder + "_sound");
      write_wav(fmt::format("{}_sound/{}{}.wav", folder, side, i), kRate, 1,
                tones(kRate, seconds, 2 * i + (side[0] == 'a')));
    }
    lines += fmt::format(R"({{"audio_filepath":"{0}_sound/user{1}.wav","duration":{2:.2f},)"
                         R"("target_audio_filepath":"{0}_sound/agent{1}.wav","supervisions":[)"
                         R"({{"speaker":"user","start":0.1,"duration":0.3,"text":"{3}"}},)"
                         R"({{"speaker":"agent","start":0.48,"duration":0.8,"text":"{4}"}}]}})",
                         folder, i, seconds, words_of(i), words_of(i + 1)) +
             "\n";
  }
  write_bytes(folder + ".jsonl", lines);
  prepare_dialogues(alone, log, {folder + ".jsonl"}, folder, {.units = units});
  const CodecDescription codec{.hash = 99,
                               .sample_rate = kRate,
                               .frame_samples = 1280,
                               .codebooks = 2,
                               .codes_per_book = 16,
                               .silence = {1, 2}};
  for (const char* name : {"codec", "other"})
    prepare_codes(alone, log, folder + "/agent", name, codec,
                  [&](std::span<const std::int16_t> samples) {
                    const int step = name[0] == 'c' ? 3 : 5;
                    std::vector<std::uint16_t> codes;
                    for (std::int64_t t = 0; t < codec.frames_of(std::ssize(samples)); ++t)
                      for (int k = 0; k < 2; ++k)
                        codes.push_back(static_cast<std::uint16_t>((step * t + k) % 16));
                    return codes;
                  });
  return folder + "/user/tokenizer.char.json";
}

/// Packs manifests into folders of these names.
void pack(Communicator& alone, Logger& log, const std::string& folder,
          std::vector<std::string> manifests, const std::vector<std::string>& names) {
  std::vector<std::string*> paths;
  for (std::string& manifest : manifests) paths.push_back(&manifest);
  const std::string units =
      pack_on_first_use(alone, log, paths, 1,
                        {.labels = "char", .sample_rate = kRate, .cache_dir = folder + "/packed"});
  const Vocabulary vocabulary = Vocabulary::from_json(units, "the units");
  for (std::size_t i = 0; i < manifests.size(); ++i)
    write_labels(manifests[i], vocabulary, "char", OnBad::stop);
  for (std::size_t i = 0; i < names.size(); ++i)
    fs::create_directory_symlink(fs::absolute(manifests[i]), folder + "/" + names[i]);
}

/// Inverts a byte within the first recording of a packed folder.
void damage(const std::string& packed) {
  constexpr std::size_t kWithin = 64 + 1000;
  std::string bytes = read_bytes(packed + "/audio_00000.pcm");
  bytes.at(kWithin) = static_cast<char>(~bytes.at(kWithin));
  write_bytes(packed + "/audio_00000.pcm", bytes);
}

}  // namespace

void write_data(const std::string& folder, const std::string& kind) {
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  Logger log(false);
  constexpr int kMany = 104;  // one of these is less than the 1 % that may be left out
  if (kind == "text") {
    for (const char* name : {"text", "text_spoilt", "text_short"})
      write_text(folder + "/" + name + ".txt", 0);
    write_text(folder + "/text_other.txt", 1000);
  } else if (kind == "speech") {
    pack(*alone, log, folder,
         {write_speech(folder + "/said", 0, 24), write_speech(folder + "/held", 24, 32)},
         {"speech", "speech_held"});
  } else if (kind == "chat") {
    write_speech(folder + "/clips", 0, 30);
    write_chat(*alone, log, folder + "/chat", folder + "/clips", 0, 24);
    write_chat(*alone, log, folder + "/chat_held", folder + "/clips", 24, 30);
  } else if (kind == "talk") {
    const std::string units = write_dialogues(*alone, log, folder + "/talk", "char", 0, 8);
    write_dialogues(*alone, log, folder + "/talk_held", units, 8, 11);
  } else if (kind == "damagedspeech") {
    pack(*alone, log, folder, {write_speech(folder + "/many", 0, kMany, 0.3)}, {kind});
    damage(folder + "/" + kind);
  } else if (kind == "damagedtalk") {
    write_dialogues(*alone, log, folder + "/" + kind, "char", 0, kMany);
    damage(folder + "/" + kind + "/user");
  } else {
    throw Error(ExitCode::other, "there is no data of kind " + kind);
  }
}

}  // namespace choir::test
