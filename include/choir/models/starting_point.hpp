#pragma once
// An earlier run from which a part of a new model takes its parameters.
#include <string>

namespace choir {

struct StartingPoint {
  std::string pattern;     ///< selects the parameters of the new model that are taken from the run
  std::string prefix;      ///< prefix of their names in that run, "lm." for example; or ""
  std::string checkpoint;  ///< path of the checkpoint
  std::string deck;        ///< resolved deck of that run as JSON
  std::string vocabulary;  ///< TrainingData::vocabulary_json() of that run, or ""
};

}  // namespace choir
