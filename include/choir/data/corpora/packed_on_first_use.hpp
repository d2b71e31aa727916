#pragma once
// Packs the manifests of speech that a deck names in place of folders of packed audio, on their
// first use and with labels, just as text is tokenised on its first use.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "choir/data/audio/audio_error.hpp"

namespace choir {

struct FirstUse {
  /// Name of the labels; "": no labels. If no folder has units of that name, they are trained on
  /// the training texts as the name specifies: "char", "bpe_256", "unigram_128".
  std::string labels = "char";
  int sample_rate = 16000;
  OnBad on_bad = OnBad::stop;
  std::string cache_dir = "data/.prepared";
};

/// Collective over `world`. Replaces each path of a file by the path of the folder in `cache_dir`
/// that was packed from it, now or before (identified by its path, size and time, and the sample
/// rate); ranks share the decoding. Paths of folders stay. The first `units_from` paths are the
/// training data. Throws DataError and StorageError like `choir prepare`, and DeckError if there
/// are no units and the name of the labels specifies none.
void pack_on_first_use(Communicator& world, Logger& log, const std::vector<std::string*>& paths,
                       std::size_t units_from, const FirstUse& options);

}  // namespace choir
