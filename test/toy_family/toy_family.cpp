// A program with the family of toy_family.hpp besides those of choir.
#include "toy_family.hpp"

int main(int argc, char** argv) {
  return choir::run(argc, argv, {&toy::family_of(toy::ToyConfig{})});
}
