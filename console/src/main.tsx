import { render } from "preact";
import { App } from "./app";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/components.css";
import "./styles/forced-colors.css";
import "./styles/print.css";

const root = document.getElementById("app");
if (root) render(<App />, root);
