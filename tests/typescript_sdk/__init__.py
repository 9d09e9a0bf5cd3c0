"""Tests of the TypeScript SDK in sdk/typescript, against a real gateway and the fake provider: `make sdk`."""
