// The table of a program with one family more.
#include "choir/models/family.hpp"

namespace choir {

const ModelFamily& gpt_family();
const ModelFamily& fastconformer_family();
const ModelFamily& toy_family();

const std::vector<const ModelFamily*>& model_families() {
  static const std::vector<const ModelFamily*> kTable{&gpt_family(), &fastconformer_family(),
                                                      &toy_family()};
  return kTable;
}

}  // namespace choir
