// Fuzzes sound in memory and in files, in every format of libsndfile (the first byte selects the
// operation), and our own WAV reader ('w').
#include <algorithm>

#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/waveform.hpp"
#include "test/fuzz/fuzz.hpp"

#include <sndfile.h>

// Decoders of libsndfile leak memory on damaged files: a few kilobytes per file, which is not our
// defect.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libsndfile.so\nleak:libvorbis\nleak:libopus\nleak:libFLAC\nleak:libogg\n"
         "leak:libmpg123\n";
}

namespace choir::fuzz {
namespace {

std::string encoded(int format, int channels, int rate) {
  const std::string path = scratch() + "/seed.audio";
  SF_INFO info{};
  info.samplerate = rate, info.channels = channels, info.format = format;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  if (file == nullptr) return {};
  std::vector<short> samples(static_cast<std::size_t>(400 * channels));
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<short>(i * 97 % 9001);
  sf_writef_short(file, samples.data(), 400);
  sf_close(file);
  return read_bytes(path);
}

void try_decoder(char ask, std::string_view bytes) {
  AudioDecoder audio = AudioDecoder::from_memory({bytes.begin(), bytes.end()}, "fuzz");
  const int rate = ask & 1 ? audio.rate() : 16000;
  const ChannelChoice channel{ask & 2 ? ChannelChoice::kAverage : 0};
  const std::int64_t count = std::min<std::int64_t>(audio.frames(), audio.rate());
  const Pcm pcm = audio.read(0, count, channel, rate);
  require(!pcm.samples.empty(), "no samples and no error");
  if (audio.frames() > count) audio.read(audio.frames() - 1, 1, channel, audio.rate());
}

void try_recording(std::string_view bytes) {
  Recording recording = Recording::open({put("a.audio", bytes), 0, -1, {0}}, 16000);
  recording.read(0, std::min<std::int64_t>(recording.samples(), 8000));
  recording.read(std::max<std::int64_t>(0, recording.samples() - 100), 200);
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const int format : {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_WAV | SF_FORMAT_FLOAT,
                           SF_FORMAT_WAV | SF_FORMAT_ULAW, SF_FORMAT_WAV | SF_FORMAT_MS_ADPCM,
                           SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS,
                           SF_FORMAT_OGG | SF_FORMAT_OPUS, SF_FORMAT_AIFF | SF_FORMAT_PCM_24,
                           SF_FORMAT_AU | SF_FORMAT_ALAW, SF_FORMAT_NIST | SF_FORMAT_PCM_16,
                           SF_FORMAT_CAF | SF_FORMAT_PCM_16, SF_FORMAT_W64 | SF_FORMAT_PCM_16,
                           SF_FORMAT_RF64 | SF_FORMAT_PCM_16, SF_FORMAT_WAVEX | SF_FORMAT_PCM_32})
    for (const int channels : {1, 2}) {
      const std::string bytes = encoded(format, channels, 16000);
      if (bytes.empty()) continue;
      for (const char ask : {'0', '1', '2', 'r'}) all.push_back(ask + bytes);
    }
  all.push_back("w" + encoded(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, 8000));
  return all;
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char ask = input.front();
  const std::string_view bytes = input.substr(1);
  accepted([&] {
    if (ask == 'w')
      parse_wav(bytes, "fuzz");
    else if (ask == 'r')
      try_recording(bytes);
    else
      try_decoder(ask, bytes);
  });
}

}  // namespace choir::fuzz
