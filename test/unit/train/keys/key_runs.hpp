#pragma once
// Small runs of a deck inside this process. Each is described by a text that depends only on the
// effects of the deck: it has no times, no paths, and no copy of the deck itself.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "test/unit/data/scratch_folder.hpp"
#include "test/unit/train/keys/key_rows.hpp"

namespace choir::test {

class KeyRuns {
 public:
  explicit KeyRuns(const ScratchFolder& folder) : folder_(folder) {}

  /// The deck with these overrides; "{data}" in them is a folder with data of every kind.
  Deck deck(const KeyBase& base, const std::vector<std::string>& overrides);

  /// The observation of a deck, made once:
  ///   losses   two steps on synthetic micro-batches: losses, norms, and all tensors afterwards
  ///   plan:N   memory, messages and work of N ranks; gpus:N the same of N cards
  ///   run      `choir train`: exit code, numbers and fields of the metrics, files, samples
  ///   stopped  the same where the run without the value ends with an error
  const std::string& of(const std::string& observable, const KeyBase& base,
                        const std::vector<std::string>& overrides);
  /// The same, observed again.
  std::string again(const std::string& observable, const KeyBase& base,
                    const std::vector<std::string>& overrides);

 private:
  std::string train(Deck deck);

  const ScratchFolder& folder_;
  std::map<std::string, std::string> seen_;
  std::set<std::string> made_;  // kinds of data
  int runs_ = 0;
};

}  // namespace choir::test
