//go:build all

package approvallog

import "testing"

func TestHundredProcessesKilledAtRandom(t *testing.T) { processesKilledAtRandom(t, 100, 100) }
