// What an attack counts.
#include <cstdio>

#include "tests/soak/attacks/attacks.h"

namespace seine::soak {

void Tally::Break(const std::string& what) {
  ++breaks_;
  printf("break: %s\n", what.c_str());
  fflush(stdout);
}

void Tally::Print() const {
  printf("cases %lld faults %lld\n", static_cast<long long>(cases_), static_cast<long long>(faults_));
  fflush(stdout);
}

}  // namespace seine::soak
