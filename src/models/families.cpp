// The table of families. A new family is a room of its own and a line here.
#include "choir/models/family.hpp"

namespace choir {

const ModelFamily& gpt_family();
const ModelFamily& fastconformer_family();
const ModelFamily& salm_family();
const ModelFamily& codec_family();
const ModelFamily& duplex_family();

const std::vector<const ModelFamily*>& model_families() {
  static const std::vector<const ModelFamily*> kTable{
      &gpt_family(), &fastconformer_family(), &salm_family(), &codec_family(), &duplex_family()};
  return kTable;
}

}  // namespace choir
