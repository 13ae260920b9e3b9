// What users of Google's client for Node.js do, as JSON: google_client.mjs ROOT MODEL_DIR. It is run where
// `googleapis` is installed.
import { createRequire } from "node:module";

const { google } = createRequire(process.cwd() + "/")("googleapis");
const [root, folder] = process.argv.slice(2);
const ml = google.ml({ version: "v1", rootUrl: root + "/" });
const models = ml.projects.models;
const parent = "projects/node";
const name = parent + "/models/m";
const found = {};

await models.create({ parent, requestBody: { name: "m", description: "made" } });
const version = { name: "v", deploymentUri: folder, framework: "SCIKIT_LEARN", runtimeVersion: "2.11" };
let operation = (await models.versions.create({ parent: name, requestBody: version })).data;
while (!operation.done) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  operation = (await ml.projects.operations.get({ name: operation.name })).data;
}
found.error = operation.error ?? null;
await models.patch({ name, updateMask: "description", requestBody: { description: "changed" } });
found.description = (await models.get({ name, fields: "description" })).data;
const instances = [[1, 1], [2, 3]];
found.predictions = (await ml.projects.predict({ name, requestBody: { instances } })).data.predictions;
const policy = (await models.getIamPolicy({ resource: name })).data;
found.policy = Object.keys((await models.setIamPolicy({ resource: name, requestBody: { policy } })).data).sort();
const discovered = await google.discoverAPI(root + "/$discovery/rest?version=v1");
found.discovered = (await discovered.projects.models.get({ name })).data.name;
try {
  await ml.projects.explain({ name, requestBody: {} });
} catch (error) {
  found["not offered"] = error.status ?? error.code;
}
console.log(JSON.stringify(found));
