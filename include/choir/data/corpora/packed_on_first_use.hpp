#pragma once
// Manifests of speech in place of folders of packed audio: packed on first use, with labels, as
// text is tokenised.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "choir/data/audio/audio_error.hpp"

namespace choir {

struct FirstUse {
  /// Name of the labels; "": none are wanted. Where no folder has units of that name they are made
  /// of the texts for training, by what the name says: "char", "bpe_256", "unigram_128".
  std::string labels = "char";
  int sample_rate = 16000;
  OnBad on_bad = OnBad::stop;
  std::string cache_dir = "data/.prepared";
};

/// Collective over `world`. Each of these paths that is a file becomes the folder in `cache_dir`
/// that was made of it, now or before (by its place, size and time, and the sample rate); ranks
/// share the decoding. Folders stay. `units_from` of them, from the first on, are those to train
/// on. Throws DataError, StorageError as `choir prepare` does; DeckError where no units are there
/// and the name of the labels says none.
void pack_on_first_use(Communicator& world, Logger& log, const std::vector<std::string*>& paths,
                       std::size_t units_from, const FirstUse& options);

}  // namespace choir
