#pragma once
// Speech by espeak-ng, and what makes it less clean.
#include <cstdint>
#include <string>
#include <vector>

namespace choir {

inline constexpr int kSpokenRate = 16000;  ///< samples a second

struct SpokenLine {
  std::string text;
  std::string voice;  ///< of espeak-ng, "en-us+f2"
  int words_per_minute = 160;
  int pitch = 50;        ///< 0 to 99
  double snr_db = 25;    ///< power of the speech over that of the white noise
  std::uint64_t id = 0;  ///< which noise
};

/// Local: "eSpeak NG text-to-speech: 1.51  Data at: ...". Throws DataError when it is not there
/// (names the package).
std::string espeak_version();

/// Local; may be called by several threads. espeak-ng's 22,050 Hz resampled to 16 kHz, its largest
/// sample brought to half of full scale, Gaussian noise by Philox(seed, "spoken noise", id) added.
/// The length is a whole number of milliseconds. The same bits whenever and wherever it is called
/// with the same espeak-ng. Throws DataError.
std::vector<std::int16_t> speak(const SpokenLine& line, std::uint64_t seed);

}  // namespace choir
