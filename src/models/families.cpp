// The list of families. A new family is a room of its own and a line here.
#include "src/models/families.hpp"

namespace choir {

const ModelFamily& gpt_family();
const ModelFamily& fastconformer_family();
const ModelFamily& salm_family();
const ModelFamily& codec_family();
const ModelFamily& duplex_family();

std::vector<const ModelFamily*> built_in_families() {
  return {&gpt_family(), &fastconformer_family(), &salm_family(), &codec_family(),
          &duplex_family()};
}

}  // namespace choir
